"""Five parties' sessions and the coordinator's recoverable rounds in one process, joined by bytes.

Everything is the product's own (sessions, roles, gates, codecs, keys under certificates) but for the streams:
`InProcessStreams` carries the messages, and can lose a party before an instruction reaches it or after it has answered.
"""

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from parley.contracts.fedbio.v1 import fedbio_pb2
from parley.coordinator.fedbio.program import program as program_of
from parley.party.fedbio.role import ALGORITHM
from parley.party.roles import Opened
from parley.privacy.aggregation import SumOpening
from parley.privacy.dataset_ledger import DatasetTerms
from parley.privacy.session_keys import sign_key
from parley.protocols.fedbio.codec import PROTOCOL
from parley.services.coordinator.fleet import PartyLost
from parley.services.coordinator.recovery import RecoverableRounds
from parley.services.party.checkpoints import Store
from parley.services.party.config import TableConfig
from parley.services.party.peers import PeerLinks
from parley.services.party.read_digests import DigestingTables
from parley.services.party.row_noise import RowProtection
from parley.services.party.sessions import Session
from parley.services.party.signed_keys import Vouched
from parley.services.party.tables import TableStore
from parley.services.wire.certificates import create_authority, issue, load_identity
from parley.services.wire.routes import Routes
from parley.simulation.runs import scratch_privacy
from parley.spec.parsing import parse_spec

NAMES = ("a", "b", "c", "d", "e")
SPEC = """
name: small
seed: 4
dtype: float64
table: records
parties: [a, b, c, d, e]
train:
  algorithm: fedbio
  rounds: 3
  warm_rounds: 0
  local_steps: 2
  batch: 8
  checked_batch: 4
  task: {kind: data_cleaning, classes: ["no", "yes"], checked: checked}
privacy: {aggregation: {kind: pairwise, recovery: true}}
evaluate_every: 0
checkpoint_every: 0
"""


def tables_of(directory, party):
    generator = np.random.default_rng(ord(party))
    configs = {}
    for table, rows in {"records": 20, "checked": 6}.items():
        values = generator.normal(size=(rows, 2))
        lines = [f"{table[0]}{i},{u},{v},{'yes' if u + v > 0 else 'no'}" for i, (u, v) in enumerate(values)]
        path = directory / f"{party}-{table}.csv"
        path.write_text("\n".join(["id,height,weight,label", *lines]))
        configs[table] = TableConfig(path=path, label="label")
    return TableStore(configs)


@dataclass
class Loss:
    """Party `party` is lost at the `nth` step of a kind: before it gets the step, or after it has answered."""

    party: int
    step: str
    """A field of RecoveryStep's `ask`."""
    after: bool
    nth: int = 0


@dataclass
class InProcessStreams:
    """What carries messages between the coordinator and the parties' sessions."""

    sessions: list[Session]
    losses: list[Loss] = field(default_factory=list)
    rewrite: object = None
    """An adversary: changes an instruction for a party on its way."""
    number: int = 0
    gone: set[int] = field(default_factory=set)
    received: dict[tuple[int, str], int] = field(default_factory=dict)
    trips: int = 0

    def next_number(self):
        self.number += 1
        return self.number

    def end_stream(self, party):
        self.gone.add(party)

    async def ask(self, messages, blobs, read):
        self.trips += 1
        return {party: await self._one(party, message, blobs, read) for party, message in messages.items()}

    async def _one(self, party, message, blobs, read):
        assert party not in self.gone, "a party that was lost is asked for nothing more"
        sent = fedbio_pb2.Instruction.FromString(message.SerializeToString())
        step = sent.recovery.WhichOneof("ask") or "none"
        nth = self.received.get((party, step), 0)
        self.received[party, step] = nth + 1
        due = [loss for loss in self.losses if (loss.party, loss.step, loss.nth) == (party, step, nth)]
        if any(not loss.after for loss in due):
            return PartyLost(NAMES[party], "lost before the instruction")
        if self.rewrite is not None:
            self.rewrite(party, sent)
        answer, parts = await self.sessions[party].handle(sent, deque(bytes(b) for b in blobs))
        if due:
            return PartyLost(NAMES[party], "lost before the answer")
        return read(party, fedbio_pb2.Contribution.FromString(answer.SerializeToString()), deque(parts))


@asynccontextmanager
async def federation(directory, text=SPEC, pins=None, **options):
    """Streams to begun sessions, and the coordinator's program and recoverable rounds."""
    spec = parse_spec(text)
    directory.mkdir(exist_ok=True)
    create_authority(directory / "authority", "test")
    for name in NAMES:
        issue(directory / "authority", name, "party", ["localhost"])
    identities = [load_identity(directory / name) for name in NAMES]
    with ThreadPoolExecutor(1) as worker:
        sessions = []
        for index, name in enumerate(NAMES):
            store = tables_of(directory, name)
            rows = RowProtection(spec.privacy.features, "run-1", NAMES, scratch_privacy, DatasetTerms())
            reads = DigestingTables(store, store.load("records"), rows)
            opened = Opened(spec, index, "run-1", "s-1", store.load("records"), reads)
            kept = Store(directory / f"state-{name}")
            sessions.append(Session(opened, "hub", ALGORITHM, kept, worker, reads, pins=pins or {}))
        signed = [
            sign_key(
                session.key,
                name=name,
                run_id="s-1",
                attempt=0,
                certificate_pem=identity.certificate_chain,
                certificate_key_pem=identity.private_key,
                agreement=session.agreement.content,
            )
            for name, session, identity in zip(NAMES, sessions, identities, strict=True)
        ]
        keys = [Vouched(key, session.agreement) for key, session in zip(signed, sessions, strict=True)]
        for name, session in zip(NAMES, sessions, strict=True):
            routes = Routes(directory / name, directory / "sockets")
            peers = PeerLinks("s-1", NAMES, [""] * len(NAMES), routes, PROTOCOL)
            await session.begin(keys, identities[0].ca, [0] * len(NAMES), 2, 0, peers)
        streams = InProcessStreams(sessions, **options)
        program = program_of(spec, None)
        opening = SumOpening(spec.privacy.aggregation, len(NAMES))
        yield streams, program, RecoverableRounds(streams, program, PROTOCOL.recovery, opening, spec, "s-1")
