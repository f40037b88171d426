"""Which recoverable sums of a run this party has helped to open, kept on its disk.

A round that is made again after a restart makes the same values. Were its sum then opened over other parties than
before, the two sums would differ by somebody's value. So a party notes whom a sum was over before it discloses, and
takes part in that phase again only over the same parties.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from parley.protocols.protocol import SettledSum
from parley.services.party.checkpoints import StorageFailed


class SumJournal:
    """One line for each sum: round, phase, participants as a bitmap. A line that was cut short was never disclosed."""

    def __init__(self, path: Path, phases: Sequence[str]) -> None:
        """`phases` are those of the algorithm, in the order in which a round has them."""
        self._path, self._phases = path, phases
        self._settled: dict[tuple[str, int], int] = {}
        self._reported: dict[tuple[str, int], int] = {}
        self._length = 0
        if path.exists():
            content = path.read_bytes()
            self._length = content.rfind(b"\n") + 1
            lines = content[: self._length].decode().splitlines()
            for k, phase, participants in (line.split() for line in lines):
                self._settled[phase, int(k)] = int(participants, 16)

    def get(self, phase: str, k: int) -> int | None:
        """Whom the sum of a phase was over, as a bitmap; None if nobody is known to have disclosed for it."""
        return self._settled.get((phase, k), self._reported.get((phase, k)))

    def learn(self, sums: Iterable[SettledSum], index: int) -> None:
        """Take over what the other parties report of the last sum that party `index` does not know of.

        It may have been lost in that one before it could disclose. If it believed reports of earlier sums as well, a
        coordinator could choose whom they are over.
        """
        missed = [(k, phase, whom) for phase, k, whom in sums if whom >> index & 1 and (phase, k) not in self._settled]
        for k, phase, whom in sorted(missed, key=lambda one: (one[0], self._phases.index(one[1])))[-1:]:
            self._reported[phase, k] = whom

    def since(self, k: int) -> Iterator[SettledSum]:
        """Phase, round and participants of every sum from round k on."""
        return ((phase, round_, whom) for (phase, round_), whom in self._settled.items() if round_ >= k)

    def note(self, phase: str, k: int, participants: int) -> None:
        """Write and sync that the sum of a phase may be opened over these parties; once is enough."""
        if self._settled.get((phase, k)) == participants:
            return
        line = f"{k} {phase} {participants:x}\n".encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("r+b" if self._path.exists() else "w+b") as file:
                file.truncate(self._length)  # of a line that was cut short
                file.seek(self._length)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as problem:
            raise StorageFailed(f"{self._path.name}: {problem.strerror}; nothing was disclosed") from problem
        self._length += len(line)
        self._settled[phase, k] = participants
