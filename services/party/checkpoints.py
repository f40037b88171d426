"""Checkpoints and models on a party's disk: atomic, synced, checksummed."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from parley.party.roles import CheckpointMissing
from parley.services.party.tensor_files import FileDamaged, seal, unseal
from parley.spec.run import LEAST_CHECKPOINTS

if TYPE_CHECKING:
    from torch import Tensor

OWNER = "coordinator.txt"
"""File that names the coordinator of a run: another one may neither resume it nor predict with its model."""

PREPROCESSING = "preprocessing.json"
"""File with what a run's training rows taught about filling, encoding and scaling; ends with its checksum."""


SPEC = "spec.sha256"
"""File with the digest of the spec that a run has begun with here."""


SPEC_TEXT = "spec.yaml"
"""File with that spec itself."""


ALGORITHM = "algorithm.txt"
"""File that names the algorithm of a run."""


DIGESTS = "digests.json"
"""File with digests of what the run has read here."""


TOLD = "told-coefficients.json"
"""File with the coefficients of a run that others were told first."""


SERVED = "served.txt"
"""File with digests of tables whose rows a deployment of the run may have been asked about."""


class StorageFailed(RuntimeError):
    """The disk did not take a file; what was there before is untouched."""


class ModelMissing(LookupError):
    """The run saved no model here."""


class Store:
    """Files of one party's runs, under its state directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def owner(self, run_id: str) -> str | None:
        """The coordinator whose run this is; None if nobody has claimed it."""
        path = self._run(run_id) / OWNER
        return path.read_text() if path.exists() else None

    def claim(self, run_id: str, coordinator: str) -> None:
        """Note whose run this is, before anything of it is kept here."""
        if self.owner(run_id) is None:
            _replace(self._made(run_id) / OWNER, coordinator.encode())

    def save_spec(self, run_id: str, digest: str) -> None:
        """Note the spec that a run begins with; what is there already stays."""
        path = self._made(run_id) / SPEC
        if not path.exists():
            _replace(path, digest.encode())

    def save_spec_yaml(self, run_id: str, text: str) -> None:
        """Keep the spec that a run begins with, for the party's owner; what is there already stays."""
        path = self._made(run_id) / SPEC_TEXT
        if not path.exists():
            _replace(path, text.encode())

    def spec_yaml(self, run_id: str) -> str | None:
        """The spec that a run has begun with here; None if it was not kept."""
        path = self._run(run_id) / SPEC_TEXT
        return path.read_text("utf-8") if path.exists() else None

    def save_algorithm(self, run_id: str, name: str) -> None:
        """Note which algorithm trains a run here, so that no other one is imported to read its model."""
        path = self._made(run_id) / ALGORITHM
        if not path.exists():
            _replace(path, name.encode())

    def algorithm(self, run_id: str) -> str | None:
        """The algorithm of a run; None where that was not noted."""
        path = self._run(run_id) / ALGORITHM
        return path.read_text() if path.exists() else None

    def spec(self, run_id: str) -> str | None:
        """The digest of the spec that a run has begun with here; None if it never began."""
        path = self._run(run_id) / SPEC
        return path.read_text() if path.exists() else None

    def save_checkpoint(
        self, run_id: str, k: int, tensors: Mapping[str, Tensor], kept: int = LEAST_CHECKPOINTS
    ) -> None:
        """Write and sync checkpoint k; older ones beyond the newest few are dropped."""
        directory = self._made(run_id)
        _write(directory / f"checkpoint-{k:012d}.safetensors", tensors)
        for old in sorted(directory.glob("checkpoint-*.safetensors"))[:-kept]:
            old.unlink(missing_ok=True)
        for rest in directory.glob("*.partial"):  # of a process that was killed while it wrote
            rest.unlink(missing_ok=True)

    def checkpoints(self, run_id: str) -> list[int]:
        """Whole checkpoints of a run, oldest first; broken files are passed over."""
        found = []
        for path in sorted(self._run(run_id).glob("checkpoint-*.safetensors")):
            try:
                _read(path)
            except CheckpointMissing:
                continue
            found.append(int(path.stem.removeprefix("checkpoint-")))
        return found

    def load_checkpoint(self, run_id: str, k: int) -> dict[str, Tensor]:
        """Read checkpoint k."""
        return _read(self._run(run_id) / f"checkpoint-{k:012d}.safetensors")

    def save_model(self, run_id: str, tensors: Mapping[str, Tensor]) -> None:
        """Write and sync the trained model."""
        _write(self._made(run_id) / "model.safetensors", tensors)

    def save_preprocessing(self, run_id: str, content: bytes) -> None:
        """Write and sync how the run's rows are preprocessed; what is there already stays."""
        path = self._made(run_id) / PREPROCESSING
        if not path.exists():
            _replace(path, content + hashlib.sha256(content).digest())

    def load_preprocessing(self, run_id: str) -> bytes | None:
        """How the run's rows are preprocessed; None if they are taken as they are."""
        path = self._run(run_id) / PREPROCESSING
        if not path.exists():
            return None
        content = path.read_bytes()
        if hashlib.sha256(content[:-32]).digest() != content[-32:]:
            raise CheckpointMissing(f"{path.name} is damaged: its checksum does not fit; start a new run")
        return content[:-32]

    def save_digests(self, run_id: str, content: bytes) -> None:
        """Write and sync digests of what the run reads; what is there already stays."""
        path = self._made(run_id) / DIGESTS
        if not path.exists():
            _replace(path, content)

    def load_digests(self, run_id: str) -> bytes | None:
        """Digests of what the run has read; None if it never began here."""
        path = self._run(run_id) / DIGESTS
        return path.read_bytes() if path.exists() else None

    def first_told(self, run_id: str, content: bytes) -> bytes:
        """What was first told of a run's coefficients; this, durably, where nothing was."""
        path = self._made(run_id) / TOLD
        if not path.exists():
            _replace(path, content)
        return path.read_bytes()

    def is_served(self, run_id: str, digest: str) -> bool:
        """Whether the sums of a table's rows by a run's model are counted."""
        path = self._run(run_id) / SERVED
        return path.exists() and digest in path.read_text().split()

    def save_served(self, run_id: str, digest: str) -> None:
        """Note that the sums of a table's rows by a run's model are counted."""
        path = self._made(run_id) / SERVED
        known = path.read_text().split() if path.exists() else []
        _replace(path, "\n".join([*known, digest]).encode())

    def restart(self, run_id: str) -> None:
        """Forget what a run has learnt here, so that it begins anew; whose run it is stays known."""
        directory = self._run(run_id)
        for path in (*directory.glob("checkpoint-*.safetensors"), directory / PREPROCESSING, directory / DIGESTS):
            path.unlink(missing_ok=True)

    def save_reports(self, run_id: str, reports: Mapping[str, bytes]) -> None:
        """Write and sync files for the party's owner."""
        for name, content in reports.items():
            _replace(self._made(run_id) / name, content)

    def load_model(self, run_id: str) -> dict[str, Tensor]:
        """Read the trained model."""
        path = self._run(run_id) / "model.safetensors"
        if not path.exists():
            raise ModelMissing(f"no model of run {run_id} is saved here: let the run finish first")
        return _read(path)

    def sums_file(self, run_id: str) -> Path:
        """Where a run's journal of recoverable sums lies."""
        return self._run(run_id) / "sums.log"

    def _run(self, run_id: str) -> Path:
        return self._root / "runs" / run_id

    def _made(self, run_id: str) -> Path:
        directory = self._run(run_id)
        with naming_failures(directory):
            directory.mkdir(parents=True, exist_ok=True)
        return directory


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Make the file appear whole or not at all, even if the machine stops in the middle."""
    _replace(path, seal(tensors))


def _replace(path: Path, content: bytes) -> None:
    scratch = path.with_suffix(".partial")
    with naming_failures(path):
        try:
            with scratch.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
        except OSError:
            scratch.unlink(missing_ok=True)
            raise
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@contextlib.contextmanager
def naming_failures(path: Path) -> Iterator[None]:
    """Tell that a file cannot be written as what it is, with the remedy."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(
            f"{path.name} cannot be written ({error.strerror}): make room in the party's `state` directory, then "
            "resume the run; checkpoints before this one are whole"
        ) from None


def _read(path: Path) -> dict[str, Tensor]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointMissing(f"{path.name} cannot be read: {error.strerror}") from None
    try:
        return unseal(content)
    except FileDamaged as damage:
        raise CheckpointMissing(f"{path.name} is damaged: {damage}") from None
