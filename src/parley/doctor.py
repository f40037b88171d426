"""What `parley doctor` looks at on this host: the installation, certificates, ports, and how findings are reported."""

import contextlib
import importlib.util
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

DISTRIBUTION = "parley-fl"
LOWEST_PYTHON = (3, 11)
SOON = timedelta(days=30)
"""A certificate that expires within this time should be renewed."""
ROOM_BYTES = 1 << 30
"""Free disk below which checkpoints may soon not fit."""
REACH_SECONDS = 5.0


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    subject: str
    """What: `python`, `certificate`, `party bank`."""
    state: Literal["ok", "warning", "broken"]
    """`broken` must be fixed; a `warning` may be meant."""
    finding: str
    """What was found."""
    remedy: str = ""
    """What to do about it."""


def ok(subject: str, finding: str) -> Check:
    """All is well."""
    return Check(subject, "ok", finding)


def warning(subject: str, finding: str, remedy: str) -> Check:
    """It works, and somebody should look at it."""
    return Check(subject, "warning", finding, remedy)


def broken(subject: str, finding: str, remedy: str) -> Check:
    """It must be fixed."""
    return Check(subject, "broken", finding, remedy)


def noticed(subject: str, table: Any) -> Check:
    """A table that can be used, once something is done that its notice names behind the first colon."""
    finding, _, remedy = table.notice.partition(": ")
    return warning(subject, f"{table.rows} rows, {table.features} columns; {finding}", remedy)


def from_error(subject: str, error: BaseException) -> Check:
    """An error whose own text says what is wrong and, behind the last full stop or colon, what to do."""
    text = " ".join(str(error).split()).rstrip(".")
    finding, _, remedy = text.rpartition(". " if ". " in text else ": ")
    return broken(subject, finding or text, remedy if finding else "")


def installation() -> Iterator[Check]:
    """Python, packages, torch, disk, ports and clock of this host."""
    yield _python()
    if all(importlib.util.find_spec(role) is not None for role in ("parley.party", "parley.coordinator")):
        yield from _packages()
        yield _torch()
    else:
        yield ok("packages", f"Parley {metadata.version(DISTRIBUTION)}, an image of one role with what that role needs")
    yield writable("working folder", Path.cwd())
    yield writable("scratch folder", Path(tempfile.gettempdir()))
    yield port("ports", "127.0.0.1:0")
    yield _clock()


def _python() -> Check:
    found = platform.python_version()
    if sys.version_info >= LOWEST_PYTHON:
        return ok("python", f"{found} ({sys.executable})")
    wanted = ".".join(map(str, LOWEST_PYTHON))
    return broken("python", f"{found}, but Parley needs {wanted}", f"install Python {wanted}, and Parley into it")


def _packages() -> Iterator[Check]:
    """Every dependency that Parley names, by the version that is installed."""
    from packaging.requirements import Requirement

    wanted = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or ()]
    needed = [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    problems = 0
    for each in needed:
        try:
            found = metadata.version(each.name)
        except metadata.PackageNotFoundError:
            problems += 1
            yield broken(f"package {each.name}", "is not installed", f"pip install '{each}'")
            continue
        if not each.specifier.contains(found, prereleases=True):
            problems += 1
            yield broken(
                f"package {each.name}", f"is {found}, but Parley needs {each.specifier}", f"pip install '{each}'"
            )
    if not problems:
        yield ok("packages", f"Parley {metadata.version(DISTRIBUTION)} and the {len(needed)} packages that it needs")


def _torch() -> Check:
    try:
        import torch
    except (ImportError, OSError) as error:
        return broken("torch", f"cannot be imported ({error})", "install the CPU build that constraints.txt names")
    if float(torch.ones(2) @ torch.ones(2)) != 2.0:
        return broken("torch", f"{torch.__version__} cannot multiply on this CPU", "install the CPU build")
    if torch.version.cuda:
        return warning("torch", f"{torch.__version__} carries CUDA, which Parley does not use", "install the CPU build")
    return ok("torch", f"{torch.__version__}, CPU build, {torch.get_num_threads()} threads")


def _clock() -> Check:
    now = datetime.now(UTC)
    installed = datetime.fromtimestamp(Path(__file__).stat().st_mtime, UTC)
    if now < installed - timedelta(minutes=5):
        return broken("clock", f"says {now:%Y-%m-%d %H:%M} UTC, before Parley was installed", "set it, and run NTP")
    return ok("clock", f"{now:%Y-%m-%d %H:%M:%S} UTC")


def writable(subject: str, folder: Path) -> Check:
    """Whether files can be made in a folder, or in the one that it would be made in. Leaves nothing behind."""
    existing = next(path for path in [folder.absolute(), *folder.absolute().parents] if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return broken(
            subject, f"{folder} cannot be written ({error.strerror})", "change its owner, or name another one"
        )
    free = shutil.disk_usage(existing).free
    if free < ROOM_BYTES:
        return warning(subject, f"{folder} has {free / 1e6:.0f} MB left", "make room for checkpoints and models")
    return ok(subject, f"{folder} can be written, {free / 1e9:.0f} GB free")


def port(subject: str, address: str) -> Check:
    """Whether an address can be listened on now."""
    host, _, number = address.rpartition(":")
    if not number.isdigit() or int(number) > 65535:
        return broken(subject, f"{address} is no host:port", "write it as 0.0.0.0:7700")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does: a closing one is no hindrance
            trial.bind((host.strip("[]"), int(number)))
            trial.listen()
    except OSError as error:
        remedy = "stop what listens there (is the service running already?), or choose another port"
        if error.errno is not None and isinstance(error, PermissionError):
            remedy = "choose a port above 1023, or grant the right to it"
        return broken(subject, f"{address} cannot be listened on ({error.strerror or error})", remedy)
    return ok(subject, "a port can be listened on" if number == "0" else f"{address} is free")


def certificate(subject: str, folder: Path, role: str | None = None, name: str | None = None) -> Check:
    """Whether an identity is whole, in date, and speaks for whom it should."""
    from parley.services.wire.certificates import CertificateError, load_identity

    try:
        identity = load_identity(folder)
    except (CertificateError, OSError) as error:
        return from_error(subject, error)
    if role is not None and identity.peer.role != role:
        found = f"{folder} is for {identity.peer.role} {identity.peer.name}, not for a {role}"
        return broken(subject, found, f"name the folder of a {role} certificate, or issue one: parley certs issue")
    if name is not None and identity.peer.name != name:
        found = f"the configuration says {name}, the certificate {identity.peer.name}"
        return broken(subject, found, "correct one of them")
    return expiry(subject, f"{identity.peer.role} {identity.peer.name}", identity.expires)


def expiry(subject: str, whose: str, expires: datetime) -> Check:
    """How long a certificate will hold."""
    left = expires - datetime.now(UTC)
    if left < timedelta(0):
        return broken(subject, f"{whose}: expired on {expires:%Y-%m-%d}", "renew it: parley certs issue")
    if left < SOON:
        return warning(subject, f"{whose}: expires on {expires:%Y-%m-%d}", "renew it: parley certs issue")
    return ok(subject, f"{whose}, until {expires:%Y-%m-%d}")


def reaches(address: str) -> str:
    """Why nothing can be dialled at an address; empty if something can."""
    host, _, number = address.rpartition(":")
    try:
        with contextlib.closing(socket.create_connection((host.strip("[]"), int(number)), REACH_SECONDS)):
            return ""
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
