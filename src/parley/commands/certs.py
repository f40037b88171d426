"""`parley certs`: who is who in a federation."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from parley.commands.options import Force, Json
from parley.display import console, show_fields

app = typer.Typer(no_args_is_help=True, help="Make and look at the certificates that say who is who.")

Authority = Annotated[Path, typer.Option(help="Folder of the authority.")]
Role = Annotated[str, typer.Option(help="coordinator, party, client or relay.")]
Hosts = Annotated[list[str] | None, typer.Option("--host", help="A host name or address, for tools; may be repeated.")]
KeyCommand = Annotated[
    str | None,
    typer.Option(help="Command that prints the authority's key as PEM, where a key service has it in place of ca.key."),
]
Days = Annotated[int, typer.Option(help="How long the certificate is valid.")]


@app.command()
def authority(
    folder: Annotated[Path, typer.Argument(help="Where its certificate and key go.")],
    name: Annotated[str, typer.Option(help="Name of the authority.")] = "parley-authority",
    days: Days = 3650,
    force: Force = False,
) -> None:
    """Make a certificate authority. Guard its key: whoever has it can issue any identity.

    Example: [bold]parley certs authority certificates/authority[/bold]
    """
    from parley.services.wire.certificates import create_authority

    made = create_authority(folder, name, days, force=force)
    console.print(f"Made authority {name}: give {made} to everyone, and {folder / 'ca.key'} to nobody.", soft_wrap=True)


@app.command()
def issue(
    name: Annotated[str, typer.Argument(help="Who it is for, as run specs and policies name it.")],
    role: Role,
    authority: Authority,
    out: Annotated[Path | None, typer.Option(help="Folder; NAME beside the authority's if left out.")] = None,
    host: Hosts = None,
    days: Days = 365,
    force: Force = False,
    key_command: KeyCommand = None,
) -> None:
    """Make a key and its certificate in one place, for a federation on one machine.

    Example: [bold]parley certs issue bank --role party --authority certificates/authority[/bold]
    """
    from parley.services.wire import certificates

    folder = certificates.issue(
        authority, name, role, host or [], days, out=out, force=force, key_command=_words(key_command)
    )
    console.print(f"Made an identity for {role} {name}: {folder}", soft_wrap=True)


@app.command()
def request(
    name: Annotated[str, typer.Argument(help="Who it is for, as run specs and policies name it.")],
    role: Role,
    out: Annotated[Path, typer.Option(help="Folder for the key and the request.")],
    host: Hosts = None,
    force: Force = False,
) -> None:
    """Make a key on the host that will use it, and a request for the authority to sign. The key stays there.

    Example: [bold]parley certs request bank --role party --out certificates/bank[/bold]
    """
    from parley.services.wire import certificates

    made = certificates.request(name, role, host or [], out, force=force)
    console.print(f"Made {made}: send it to the authority. {out / 'key.pem'} stays here.", soft_wrap=True)


@app.command()
def sign(
    request: Annotated[Path, typer.Argument(help="The request.pem that came in.", exists=True, dir_okay=False)],
    authority: Authority,
    name: Annotated[str, typer.Option(help="The name that was agreed; another one is refused.")],
    role: Role,
    out: Annotated[Path | None, typer.Option(help="Folder; beside the request if left out.")] = None,
    days: Days = 365,
    force: Force = False,
    key_command: KeyCommand = None,
) -> None:
    """Answer a request, after checking with its sender who it is.

    Example: [bold]parley certs sign request.pem --authority certificates/authority --name bank --role party[/bold]
    """
    from parley.services.wire import certificates

    made = certificates.sign(
        request, authority, days, name=name, role=role, out=out, force=force, key_command=_words(key_command)
    )
    console.print(f"Signed {role} {name}: send {made} and {made.parent / 'ca.pem'} back.", soft_wrap=True)


@app.command()
def revoke(
    certificate: Annotated[
        list[Path], typer.Argument(help="An identity's folder, or its certificate.pem; may be repeated.")
    ],
    authority: Authority,
    key_command: KeyCommand = None,
) -> None:
    """Take certificates back: write the authority's list of revoked ones, which every service reads when it changes.

    Copy the list into the identity folder of each service. Calls with a certificate on it are refused, and streams end.

    Example: [bold]parley certs revoke certificates/bank --authority certificates/authority[/bold]
    """
    from parley.services.wire.revocation import revoke as put_on_list

    taken = [path / "certificate.pem" if path.is_dir() else path for path in certificate]
    made = put_on_list(taken, authority, key_command=_words(key_command))
    console.print(f"Wrote {made}: copy it into every identity folder of the federation.", soft_wrap=True)


def _words(command: str | None) -> list[str] | None:
    return None if command is None else shlex.split(command)


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="Folder of an identity or an authority.", exists=True)],
    json: Json = False,
) -> None:
    """Say whom a folder speaks for and until when, and check that its parts belong together.

    Example: [bold]parley certs show certificates/bank[/bold]
    """
    from cryptography.hazmat.primitives import hashes

    from parley.services.wire.certificate_files import load_certificate, refuse_non_authority
    from parley.services.wire.certificates import load_identity

    identity = None if (folder / "ca.key").exists() else load_identity(folder)
    file = folder / ("ca.pem" if identity is None else "certificate.pem")
    certificate = load_certificate(file)
    if identity is None:
        refuse_non_authority(certificate, file)
    fields = {
        "role": "authority" if identity is None else identity.peer.role,
        "name": certificate.subject.rfc4514_string() if identity is None else identity.peer.name,
        "issuer": certificate.issuer.rfc4514_string(),
        "expires": (certificate.not_valid_after_utc if identity is None else identity.expires).isoformat(),
        "sha256": certificate.fingerprint(hashes.SHA256()).hex(),
        "file": str(file),
    }
    show_fields(fields, as_json=json)
