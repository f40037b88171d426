"""The directory where a service keeps what must survive it; one service at a time."""

import os
import tempfile
from pathlib import Path

from parley.storage.leases import FileLease

_held: list[FileLease] = []
"""Directories that this process holds: a lease that nobody refers to would be let go."""


class StateNotWritable(OSError):
    """The state directory cannot be written."""


def prepare_state(directory: Path) -> None:
    """Make the directory, try it at the start, not at the first checkpoint of a long run, and hold it to the end.

    Raises:
        StateNotWritable: with who tries to write and how to let them.
        HeldElsewhere: if another service uses it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise StateNotWritable(
            f"the state directory {directory} cannot be written by uid {os.getuid()} ({error.strerror}): "
            f"mount a volume there that belongs to this user, or change its owner (chown -R {os.getuid()})"
        ) from None
    _held.append(FileLease(directory / "service.lock", f"the state directory {directory}"))
