"""The directory where a service keeps what must survive it; one service at a time, and for its own user's eyes only."""

import logging
import os
import tempfile
from pathlib import Path

from parley.storage.leases import FileLease

_OTHERS = 0o077
logger = logging.getLogger(__name__)

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
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise StateNotWritable(
            f"the state directory {directory} cannot be written by uid {os.getuid()} ({error.strerror}): "
            f"mount a volume there that belongs to this user, or change its owner (chown -R {os.getuid()})"
        ) from None
    close_to_others(directory)
    _held.append(FileLease(directory / "service.lock", f"the state directory {directory}"))


def keep_files_private() -> None:
    """Let whatever this process writes from now on be readable by its own user alone."""
    os.umask(_OTHERS)


def close_to_others(directory: Path) -> None:
    """Take from others what they may do with a directory and all that is in it; earlier versions left it to them."""
    for folder, _, files in os.walk(directory):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            try:
                mode = path.lstat().st_mode
                if mode & _OTHERS and not path.is_symlink():
                    path.chmod(mode & 0o700)
            except FileNotFoundError:
                continue  # a file of a database comes and goes
            except PermissionError:
                logger.warning("%s belongs to another user and may be read by others: change its owner", path)
