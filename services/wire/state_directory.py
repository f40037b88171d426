"""The directory where a service keeps what must survive it."""

import os
import tempfile
from pathlib import Path


class StateNotWritable(OSError):
    """The state directory cannot be written."""


def prepare_state(directory: Path) -> None:
    """Make the directory and try it at the start, not at the first checkpoint of a long run.

    Raises:
        StateNotWritable: with who tries to write and how to let them.
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
