"""Make the certificates of a federation on one host, each into the volume of the service that uses it.

What is there already is checked and kept. `--renew` makes every certificate anew under the same authority; services
pick theirs up without a restart.
"""

import argparse
from pathlib import Path

from parley.services.wire.certificates import (
    CertificateError,
    CertificateExpired,
    create_authority,
    issue,
    load_identity,
)

FEDERATION = Path("/federation")
AUTHORITY = FEDERATION / "authority"
DAYS = 365


def prepare(role: str, name: str, *, renew: bool) -> str:
    """Make or check the identity of `name`; returns what was done."""
    folder = FEDERATION / name
    if renew or not (folder / "certificate.pem").exists():
        issue(AUTHORITY, name, role, [name, "localhost", "127.0.0.1"], DAYS, out=folder, force=True)
        return "made"
    return f"kept, valid until {load_identity(folder).expires:%Y-%m-%d}"


def main() -> None:
    """Entry point of the one-shot service."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("identities", nargs="+", metavar="ROLE/NAME")
    parser.add_argument("--renew", action="store_true", help="make every certificate anew")
    given = parser.parse_args()
    try:
        if not (AUTHORITY / "ca.pem").exists():
            create_authority(AUTHORITY, "compose-authority")
        for identity in given.identities:
            role, name = identity.split("/")
            print(f"{role} {name}: {prepare(role, name, renew=given.renew)}")  # noqa: T201 (its log)
    except CertificateExpired as error:
        raise SystemExit(f"error: {error}\nRenew all: docker compose run --rm certificates --renew") from None
    except PermissionError as error:
        raise SystemExit(
            f"error: the volume at {error.filename} is not writable by this container's user: "
            "remove it with `docker compose down --volumes`, or give it to uid 10001"
        ) from None
    except CertificateError as error:
        raise SystemExit(f"error: {error}\nStart afresh: docker compose down --volumes") from None


if __name__ == "__main__":
    main()
