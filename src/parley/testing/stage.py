"""Where the contract suite plays: two federations of real processes with the same keys."""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow
import pyarrow.parquet

from parley.client import Federation, Run
from parley.coordinator.labels import LabelAccess
from parley.coordinator.programs import CoordinatorAlgorithm, Program
from parley.privacy.aggregation import SumOpening
from parley.privacy.ledger import open_ledger
from parley.privacy.release import Release
from parley.services.coordinator.config import CoordinatorConfig
from parley.services.coordinator.labels import LabelStore
from parley.services.party.checkpoints import Store
from parley.services.wire.configuration import load_config
from parley.spec.algorithms import algorithm_named
from parley.testing.cases import AlgorithmCase, Columns
from parley.testing.federations import KEY, Passed, RelayedFederation
from parley.testing.hand_driven import HandDrivenSession
from parley.testing.recordings import BEGIN, OPEN, Framed, Recording
from parley.testing.remains import Remains, remains_of, start, wait_for_end

READY_SECONDS = 300.0


@dataclass(frozen=True)
class RecordedRun:
    """A run that nothing disturbed: what it sent, and what it left."""

    case: AlgorithmCase
    run: Run
    recording: Recording
    remains: Remains

    @property
    def run_id(self) -> str:
        """The run."""
        return self.run.run_id


@dataclass
class Arena:
    """One of the federations, and a client of it."""

    federation: RelayedFederation
    client: Federation

    def complete(self, case: AlgorithmCase, request_id: str) -> Run:
        """Start a run and wait for its end, whatever happens to the services meanwhile."""
        run = start(self.client, case.patient_spec, request_id)
        return wait_for_end(self.client, run.run_id)

    def remains(self, run: Run) -> Remains:
        """What a run left."""
        return remains_of(self.federation, self.client, run.run_id)

    def model(self, party: str, run_id: str) -> Mapping[str, Any]:
        """The model that a party saved."""
        return Store(self.federation.directory / "state" / party).load_model(run_id)


class Stage:
    """Two federations that can make every run of some cases: in one nothing is disturbed, in the other anything is."""

    def __init__(self, directory: Path, cases: Sequence[AlgorithmCase]) -> None:
        self._directory, self._cases = directory, cases
        self._open = contextlib.ExitStack()
        self._recorded: dict[int, RecordedRun] = {}
        self.quiet: Arena
        self.disturbed: Arena

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opening:
            tables, labels = write_tables(self._directory / "data", self._cases)
            self.quiet, self.disturbed = (self._arena(opening, name, tables, labels) for name in ("quiet", "disturbed"))
            self._open = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def recorded(self, case: AlgorithmCase) -> RecordedRun:
        """The undisturbed run of a case; made once."""
        if id(case) not in self._recorded:
            recording = Recording(case.protocol)
            with self.quiet.federation.tapped(recording):
                run = self.quiet.complete(case, f"recorded {case.parsed.name}")
            assert run.state == "COMPLETED", f"{case.algorithm}: the undisturbed run is {run.state}: {run.reason}"
            self._recorded[id(case)] = RecordedRun(case, run, recording, self.quiet.remains(run))
        return self._recorded[id(case)]

    @contextlib.contextmanager
    def session(self, recorded: RecordedRun, run_id: str) -> Iterator[HandDrivenSession]:
        """A session of a recorded run in the quiet federation, driven by hand, under the same run id or another."""
        opening = next(iter(recorded.recording.requests(OPEN).values()))
        beginning = next(iter(recorded.recording.requests(BEGIN).values()))
        opening.run_id = run_id
        with contextlib.closing(HandDrivenSession(self.quiet.federation, opening, beginning)) as session:
            yield session

    def replayed(self, recorded: RecordedRun) -> Iterator[tuple[int, Program, Release[Any], list[Framed]]]:
        """The coordinator's side of a recorded run once more, in this process: each round with its contributions."""
        case, recording = recorded.case, recorded.recording
        config = load_config(self.quiet.federation.directory / "coordinator.yaml", CoordinatorConfig)
        labels = LabelStore(config.labels)
        access = LabelAccess(case.parsed, recorded.run_id, labels.load, open_ledger("sqlite://"), KEY)
        side: CoordinatorAlgorithm = algorithm_named(case.algorithm).load("coordinator")
        program = side.program(case.parsed, access)
        opening = SumOpening(case.parsed.privacy.aggregation, len(case.parties))
        rounds = program.rounds(0, lambda _: None)
        current, total = next(rounds), None
        for number, contributions in recording.contributions().items():
            release = program.gate.release(current)
            yield number, program, release, contributions
            place = {framed.sender: framed for framed in contributions}
            chosen = range(len(case.parties)) if current.participants is None else current.participants
            ordered = [place[case.parties[party]] for party in chosen]
            addends = [program.decode(recording.message(one), one.blobs, release) for one in ordered]
            kept = [addend for addend in addends if addend is not None]
            total = opening.open(kept, chosen) if kept else None
            if current.keeps != "model":
                current = rounds.send(total)

    def _arena(
        self, opening: contextlib.ExitStack, name: str, tables: Mapping[str, Any], labels: Mapping[str, Any]
    ) -> Arena:
        policy = small_policy(self._cases)
        federation = RelayedFederation(
            self._directory / name, tables, labels, policy=policy, ready_seconds=READY_SECONDS
        )
        opening.enter_context(federation)
        return Arena(federation, opening.enter_context(federation.connect()))


def small_policy(cases: Sequence[AlgorithmCase]) -> dict[str, Any]:
    """A party's policy that takes every case, as small as its author likes."""
    return {
        **dict.fromkeys(("minimum_rows", "minimum_batch", "minimum_evaluation"), 1),
        "algorithms": sorted({case.algorithm for case in cases}),
        "aggregations": ["pairwise", "two_tree", "plain"],
        "epsilon_budget": 1e9,
    }


def write_tables(data: Path, cases: Sequence[AlgorithmCase]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Write the tables of cases to a new folder; returns those of each party, and those of labels."""
    data.mkdir(parents=True)
    tables: dict[str, dict[str, Any]] = {}
    labels: dict[str, Any] = {}
    for case in cases:
        for party, own in case.tables.items():
            known = tables.setdefault(party, {})
            for name, columns in own.items():
                known[name] = _written(data / f"{party}-{name}.parquet", columns)
        labels |= {name: _written(data / f"labels-{name}.parquet", columns) for name, columns in case.labels.items()}
    for written in labels.values():
        written.pop("label", None)  # a label table's column has this name anyway
        written["minimum_evaluation"] = 1  # small tables, and nobody's secret
    return tables, labels


def _written(path: Path, columns: Columns) -> dict[str, str]:
    if path.exists():
        raise ValueError(f"{path.stem}: two cases have a table of this name; give each its own")
    pyarrow.parquet.write_table(pyarrow.table(dict(columns)), path)
    return {"path": str(path)} | ({"label": "label"} if "label" in columns else {})


class Killer:
    """A tap that kills services one after the other, each when so many messages have passed since the one before.

    Each is restarted at once.
    """

    def __init__(self, federation: RelayedFederation, victims: Sequence[str], after: int) -> None:
        self._federation, self._left, self._after, self._count = federation, list(victims), after, after
        self._down, self._killed, self._over = "", threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._restart, daemon=True)
        self._failure: Exception | None = None

    @property
    def spared(self) -> list[str]:
        """Who was not killed."""
        return self._left

    def __call__(self, passed: Passed) -> bytes:
        """Count a message; the one that is due finds a service dead."""
        self._count -= 1
        if self._left and self._count <= 0 and not self._down:
            self._federation.kill(self._left[0])
            self._down, self._count = self._left.pop(0), self._after
            self._killed.set()
        return passed.data

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._killed.set()
        self._thread.join()
        if self._failure is not None:
            raise AssertionError("a service that was killed did not come back") from self._failure

    def _restart(self) -> None:
        try:
            while not self._over.is_set() or self._down:
                self._killed.wait()
                self._killed.clear()
                if self._down:
                    name, self._down = self._down, ""
                    self._federation.restart(name)
        except Exception as error:
            self._failure = error
