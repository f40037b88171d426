"""Keys that live in a key service: a command of the owner's prints one when it is needed, and no file holds it."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from parley.privacy.noise import KEY_BYTES, read_or_create_key

COMMAND_SECONDS = 60


class KeyCommandFailed(OSError):
    """The command gave no key. What it printed is not told: it may be part of one."""


def printed_by(command: Sequence[str]) -> bytes:
    """What a command prints.

    Raises:
        KeyCommandFailed: if it cannot be run, fails, or takes too long.
    """
    name = command[0] if command else ""
    try:
        done = subprocess.run(list(command), capture_output=True, timeout=COMMAND_SECONDS, check=True)  # noqa: S603
    except subprocess.CalledProcessError as error:
        raise KeyCommandFailed(
            f"key_command {name} ended with exit code {error.returncode}: try it by hand as this user"
        ) from None
    except subprocess.TimeoutExpired:
        raise KeyCommandFailed(f"key_command {name} took more than {COMMAND_SECONDS} s: try it by hand") from None
    except (OSError, ValueError) as error:
        detail = getattr(error, "strerror", None) or "no command"
        raise KeyCommandFailed(f"key_command {name!r} cannot be run ({detail}): name a program and its path") from None
    return done.stdout


def noise_key(command: Sequence[str] | None, path: Path) -> bytes:
    """The key of label noise: what a command prints as hexadecimal digits, or the file's, made on first use.

    Raises:
        KeyCommandFailed: if the command prints something else, or a file holds another key than it does.
    """
    if command is None:
        return read_or_create_key(path)
    try:
        key = bytes.fromhex(printed_by(command).decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise KeyCommandFailed(f"key_command must print {2 * KEY_BYTES} hexadecimal digits, the key of label noise")
    if path.exists() and path.read_bytes() != key:
        raise KeyCommandFailed(
            f"key_command prints another key than {path} holds, and runs that go on would draw other noise: put the "
            "file's key into the key service, then delete the file"
        )
    return key
