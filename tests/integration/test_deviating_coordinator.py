"""A coordinator that tells parties different things learns nothing: unmodified party processes, and a client with the
coordinator's certificate that tries one deviation after the other. Each ends in a refusal, or in a sum that does not
open: what the coordinator can add up is noise.
"""

import contextlib
import json
import secrets
import stat
from dataclasses import dataclass, field

import grpc
import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from parley.cli import app
from parley.client import RequestRefused
from parley.contracts.bambi.v1 import bambi_pb2
from parley.contracts.party.v1 import party_service_pb2 as pb
from parley.contracts.party.v1 import party_service_pb2_grpc as pb_grpc
from parley.contracts.serving.v1.serving_pb2 import GivenBlock, ServedRows
from parley.privacy.receipts import TranscriptDiffers
from parley.protocols.tensor.codec import Blobs, decode_tensor, encode_tensor
from parley.services.party.transcripts import TranscriptFile, check_record
from parley.services.wire.certificates import load_identity
from parley.services.wire.refusals import reason_of
from parley.services.wire.transport import channel_credentials, channel_options
from parley.services.wire.version import PROTOCOLS, VERSION
from tests.integration.conftest import spec

NAMES = ("bank", "shop", "telco")
VICTIM, OTHERS = "bank", ("shop", "telco")
BATCH, OUTPUTS = 64, 10
COLUMNS = OUTPUTS - 1
"""Of a sum: the last class does not cross."""
LIMIT = 3 * 2.0**16
"""No honest sum of three parties is larger."""


def small(**changes):
    """A zeroth-order run, whose instructions a client can write by hand."""
    text = spec(
        parties=list(NAMES),
        privacy__labels={"mechanism": "off"},
        train__lower={"solver": "sgd", "steps": 4, "batch": BATCH, "optimiser": {"step": 0.1}},
        train__hypergradient="zeroth_order_local",
        train__zeroth_order={"directions": 1, "smoothing": 0.01},
    )
    content = yaml.safe_load(text)
    for path, value in changes.items():
        *parents, last = path.split("__")
        section = content
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return yaml.safe_dump(content)


@dataclass
class Refused(Exception):
    """A party's refusal."""

    party: str
    reason: str


@dataclass
class Deviating:
    """A coordinator by hand: what it tells each party may differ."""

    stubs: dict
    addresses: dict
    run_id: str = field(default_factory=lambda: f"deviates-{secrets.token_hex(6)}")
    session_id: str = field(default_factory=lambda: f"s-{secrets.token_hex(8)}")
    opened: dict = field(default_factory=dict)

    def open(self, texts=None, order=NAMES, **changes):
        """Open the session everywhere; `texts` and `changes` are by party."""
        for name in order:
            request = pb.OpenSessionRequest(
                run_id=self.run_id,
                session_id=self.session_id,
                spec_yaml=(texts or {}).get(name, small()),
                version=VERSION,
                protocol=PROTOCOLS[-1],
                purpose=pb.PURPOSE_TRAIN,
            )
            for key, value in changes.get(name, {}).items():
                getattr(request, key).extend(value) if key == "ids" else setattr(request, key, value)
            self.opened[name] = self._call(name, "OpenSession", request)
        return self

    def begin(self, change=None, order=NAMES):
        """Begin it everywhere; `change(name, request)` edits what one party is told."""
        for name in order:
            request = pb.BeginSessionRequest(
                session_id=self.session_id,
                keys=[self.opened[each].key for each in order],
                upper_sizes=[self.opened[each].upper_size for each in order],
                peer_addresses=[self.addresses[each] for each in order],
                outputs=OUTPUTS,
            )
            if change is not None:
                change(name, request)
            self._call(name, "BeginSession", request)
        return self

    def send(self, name, *instructions):
        """A party's masked addends, one for each instruction that asks for one."""
        return [_masked(answer) for answer in self.exchange(name, *instructions)]

    def exchange(self, name, *instructions, **fields):
        """A party's answers; `fields` are of the first envelope."""
        requests = [pb.ExchangeRequest(attach=pb.Attach(session_id=self.session_id))]
        requests += [
            pb.ExchangeRequest(bambi=instruction, **(fields if number == 0 else {}))
            for number, instruction in enumerate(instructions)
        ]
        return self._call(name, "Exchange", iter(requests), list)

    def close(self):
        for name in self.stubs:
            self._call(name, "CloseSession", pb.CloseSessionRequest(session_id=self.session_id))

    def _call(self, name, method, request, read=lambda answer: answer):
        try:
            return read(getattr(self.stubs[name], method)(request, timeout=60))
        except grpc.RpcError as error:
            raise Refused(name, reason_of(error)) from None


def _masked(answer):
    share = answer.bambi.WhichOneof("share")
    if share == "acknowledgement":
        return None
    return decode_tensor(getattr(answer.bambi, share).sum.masked, Blobs(), name="masked", kinds="u", ndim=1)


def opens(addends, fraction_bits=40):
    """Whether what a coordinator adds up looks like a sum: most of it is within the limit, not all over the ring."""
    size = min(addend.size for addend in addends)
    total = np.sum([addend[:size] for addend in addends], axis=0, dtype=np.uint64).view(np.int64)
    return float(np.mean(np.abs(total * 2.0**-fraction_bits) <= LIMIT)) > 0.5


def forward(number, t=0, gradient=None, k=1):
    """Ask for embeddings of a lower batch, with the gradient of the round before."""
    message = bambi_pb2.Instruction(round=number, lower_forward=bambi_pb2.LowerForward(k=k, t=t))
    if gradient is not None:
        message.gradient.theta.CopyFrom(encode_tensor(np.asarray(gradient, np.float32), Blobs()))
    return message


def rows(number, first=0, count=50):
    ask = bambi_pb2.RowsForward(rows=bambi_pb2.ROW_SET_TEST, first=first, count=count)
    return bambi_pb2.Instruction(round=number, rows_forward=ask)


@pytest.fixture(scope="module")
def stubs(federation):
    credentials = channel_credentials(load_identity(federation.identity("coordinator")))
    with contextlib.ExitStack() as stack:
        found = {}
        for name in NAMES:
            channel = grpc.secure_channel(
                federation.addresses[name], credentials, options=channel_options("party", name)
            )
            found[name] = pb_grpc.PartyServiceStub(stack.enter_context(channel))
        yield found


@pytest.fixture
def coordinator(federation, stubs):
    """Makes coordinators; each of their sessions is closed in the end."""
    made = []

    def make(**fields):
        made.append(Deviating(stubs, federation.addresses, **fields))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def trained(federation):
    """A run that has trained and kept checkpoints."""
    with federation.connect() as client:
        run = client.start(small(train__upper={"steps": 4, "batch": 128}, checkpoint_every=2))
        run.result()
        return run.run_id


def trained_spec():
    return small(train__upper={"steps": 4, "batch": 128}, checkpoint_every=2)


def test_told_the_same_the_sum_opens(coordinator):
    session = coordinator().open().begin()
    first = [session.send(name, rows(1))[0] for name in NAMES]
    assert opens(first)
    assert opens([session.send(name, rows(2, first=50))[0] for name in NAMES])
    assert not opens(first[:2]), "two of three addends are noise, so the measure can tell"


OPENINGS = {
    "fraction bits": {"privacy__aggregation": {"fraction_bits": 0}},
    "limit": {"privacy__aggregation": {"limit": 1000.0}},
    "rows of the split": {"split": {"lower": 0.5, "upper": 0.3, "test": 0.2}},
    "seed": {"seed": 4},
    "columns of another party": {"parties": ["bank", "shop", {"name": "telco", "columns": ["pixel_60"]}]},
    "order of the parties": {"parties": ["shop", "bank", "telco"]},
    "participants": {"parties": ["bank", "shop", "telco", "grocer"]},
    "table": {"table": "few"},
    "model": {"train__model": {"kind": "mlp", "hidden": [4], "out": 8}},
}


@pytest.mark.parametrize("what", OPENINGS)
def test_other_parties_are_told_another_spec(coordinator, what):
    session, other = coordinator(), small(**OPENINGS[what])
    with pytest.raises(Refused) as refusal:
        session.open(dict.fromkeys(OTHERS, other)).begin()
    assert (refusal.value.party, refusal.value.reason) in {
        (VICTIM, "CONSENT_DIFFERS"),
        (VICTIM, "MESSAGE_INVALID"),  # fewer keys than it knows parties
        ("telco", "DATA_INVALID"),  # it has no such column
        ("shop", "POLICY_REFUSED"),  # the limit is the parties' own to set
    }, "the victim refuses before anything has left"


def serving(coordinator, trained):
    """A session of a deployed model at every party."""
    every = {name: {"purpose": pb.PURPOSE_SERVE, "deployment": "deviates"} for name in NAMES}
    return coordinator(run_id=trained).open(dict.fromkeys(NAMES, trained_spec()), **every).begin()


def served(session, name, number, ids, **fields):
    """A party's answer to a question about rows."""
    ask = bambi_pb2.RowsForward(rows=bambi_pb2.ROW_SET_ALL, first=0, count=len(ids))
    question = ServedRows(ids=ids, callers=["analyst"], asked_by=[0] * len(ids), **fields)
    return session.exchange(name, bambi_pb2.Instruction(round=number, rows_forward=ask), served=question)[0]


def test_a_deployed_model_is_asked_for_other_rows_at_one_party(coordinator, trained):
    session = serving(coordinator, trained)
    assert opens([_masked(served(session, name, 1, ["1", "2"])) for name in NAMES])
    told = {VICTIM: ["1", "2"], "shop": ["1", "3"], "telco": ["1", "3"]}
    assert not opens([_masked(served(session, name, 2, told[name])) for name in NAMES])
    same = [_masked(served(session, name, 3, ["1", "2"])) for name in NAMES]
    assert not opens(same), "who was told different things never opens a sum again"


def test_a_deployed_model_is_told_at_one_party_that_a_caller_brings_a_block(coordinator, trained):
    session = serving(coordinator, trained)
    given = [GivenBlock(party=1, rows=[0])]
    answers = {name: served(session, name, 1, ["1"], given=given) for name in (VICTIM, "telco")}
    assert {answer.declined.reason for answer in answers.values()} == {"FEATURES_REFUSED"}, "no policy names a block"
    assert not any(answer.bambi.HasField("embedding") for answer in answers.values())


def test_a_deployed_model_takes_no_other_instruction(coordinator, trained):
    session = serving(coordinator, trained)
    question = ServedRows(ids=["1"], callers=["analyst"], asked_by=[0])
    for instruction in (rows(1), forward(1), bambi_pb2.Instruction(round=1, finish=bambi_pb2.Finish())):
        with pytest.raises(Refused) as refusal:
            session.exchange(VICTIM, instruction, served=question)
        assert refusal.value.reason == "MESSAGE_INVALID"


def test_a_party_is_told_to_train_on_ids_of_the_coordinators_choice(coordinator):
    with pytest.raises(Refused) as refusal:
        coordinator().open(bank={"ids": ["17"]})
    assert refusal.value.reason == "MESSAGE_INVALID"


def test_others_are_told_an_earlier_protocol(coordinator):
    with pytest.raises(Refused) as refusal:
        coordinator().open(**{name: {"protocol": PROTOCOLS[-2]} for name in OTHERS}).begin()
    assert (refusal.value.party, refusal.value.reason) == (VICTIM, "CONSENT_DIFFERS")


def test_others_are_told_that_the_session_predicts(coordinator, trained):
    predicts = {name: {"purpose": pb.PURPOSE_PREDICT} for name in OTHERS}
    with pytest.raises(Refused) as refusal:
        coordinator(run_id=trained).open(dict.fromkeys(NAMES, trained_spec()), **predicts).begin()
    assert (refusal.value.party, refusal.value.reason) == (VICTIM, "CONSENT_DIFFERS")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_others_are_told_to_predict_on_another_table_with_the_same_rows(coordinator, trained, protocol):
    """Its sums with the one and with the other would differ by what the victim adds."""
    for told in ("unlike", "few"):  # of the victim, both are one file
        every = {
            name: {"purpose": pb.PURPOSE_PREDICT, "table": told if name == VICTIM else "few", "protocol": protocol}
            for name in NAMES
        }
        session = coordinator(run_id=trained).open(dict.fromkeys(NAMES, trained_spec()), **every)
        assert len({session.opened[name].id_digest for name in NAMES}) == 1
        if told == "few":
            session.begin()
            continue
        with pytest.raises(Refused) as refusal:
            session.begin()
        assert (refusal.value.party, refusal.value.reason) == (VICTIM, "CONSENT_DIFFERS")


def beginning(edit, *names):
    return lambda name, request: edit(request) if name in names else None


def _larger_block(request):
    request.upper_sizes[1] += 1


def _own_key(request):
    request.keys[1].public_key = bytes(31) + b"\x09"


def _no_agreement(request):
    request.keys[1].ClearField("agreement")


def _another_agreement(request):
    request.keys[1].agreement.spec_digest = bytes(32)


def _victims_own_key(request):
    request.keys[0].public_key = bytes(31) + b"\x09"


def _swapped_keys(request):
    first, second = pb.BeginSessionRequest(keys=request.keys[1:]).keys
    request.keys[1].CopyFrom(second)
    request.keys[2].CopyFrom(first)


BEGINNINGS = {
    "sizes of blocks": (_larger_block, "CONSENT_DIFFERS"),
    "a key of its own": (_own_key, "KEY_REFUSED"),
    "a key for the victim itself": (_victims_own_key, "KEY_REFUSED"),
    "keys in another order": (_swapped_keys, "KEY_REFUSED"),
    "a key without what its owner agreed to": (_no_agreement, "MESSAGE_INVALID"),
    "what another party agreed to": (_another_agreement, "KEY_REFUSED"),
}


@pytest.mark.parametrize("what", BEGINNINGS)
def test_the_victim_is_told_another_beginning_and_refuses(coordinator, what):
    edit, reason = BEGINNINGS[what]
    with pytest.raises(Refused) as refusal:
        coordinator().open().begin(beginning(edit, VICTIM))
    assert (refusal.value.party, refusal.value.reason) == (VICTIM, reason)


def test_keys_of_another_session_are_refused(coordinator):
    earlier, session = coordinator().open(), coordinator().open()

    def replay(name, request):
        if name == VICTIM:
            request.keys[1].CopyFrom(earlier.opened["shop"].key)

    with pytest.raises(Refused) as refusal:
        session.begin(replay)
    assert (refusal.value.party, refusal.value.reason) == (VICTIM, "KEY_REFUSED")


def test_others_are_told_another_number_of_outputs_and_the_sum_does_not_open(coordinator):
    def fewer(request):
        request.outputs = 1

    session = coordinator().open().begin(beginning(fewer, *OTHERS))
    assert not opens([session.send(name, rows(1))[0] for name in NAMES])


def test_others_begin_from_another_checkpoint_and_the_sum_does_not_open(coordinator, trained):
    session = coordinator(run_id=trained).open(dict.fromkeys(NAMES, trained_spec()))
    assert {2, 4} <= set(session.opened[VICTIM].checkpoints)

    def begin_at(name, request):
        request.checkpoint = 4 if name == VICTIM else 2

    session.begin(begin_at)
    assert not opens([session.send(name, rows(1))[0] for name in NAMES])


def _theta(session):
    """The others apply θ = 0 where the victim applies something."""
    trajectories = session.send(VICTIM, forward(1))[0].size // (BATCH * COLUMNS)
    real = np.ones((trajectories, BATCH, COLUMNS), np.float32)
    for name in OTHERS:
        session.send(name, forward(1))
    yield session.send(VICTIM, forward(2, t=1, gradient=real))[0]
    for name in OTHERS:
        yield session.send(name, forward(2, t=1, gradient=0 * real))[0]


def _k(session):
    yield session.send(VICTIM, forward(1, k=1))[0]
    for name in OTHERS:
        yield session.send(name, forward(1, k=2))[0]


def _rows(session):
    yield session.send(VICTIM, rows(1))[0]
    for name in OTHERS:
        yield session.send(name, rows(1, first=100))[0]


def _ask(session):
    yield session.send(VICTIM, rows(1, count=BATCH))[0]
    for name in OTHERS:
        yield session.send(name, forward(1))[0]


def _replay(session):
    """The victim's answer to round 1 in the sum of round 2."""
    yield session.send(VICTIM, rows(1))[0]
    for name in OTHERS:
        yield session.send(name, rows(1), rows(2, first=50))[1]


def _past(session):
    """An earlier round told the parties different things, and its sum was thrown away."""
    session.send(VICTIM, rows(1))
    for name in OTHERS:
        session.send(name, rows(1, first=100))
    for name in NAMES:
        yield session.send(name, rows(2, first=50))[0]


def _another_session(session):
    """Addends of two sessions in one sum: other nonces, other masks."""
    yield session.send(VICTIM, rows(1))[0]
    later = Deviating(session.stubs, session.addresses)
    later.open().begin()
    for name in OTHERS:
        yield later.send(name, rows(1))[0]
    later.close()


ROUNDS = {
    "theta": _theta,
    "k": _k,
    "rows": _rows,
    "another ask": _ask,
    "a replayed round": _replay,
    "a round that is long past": _past,
    "addends of another session": _another_session,
}


@pytest.mark.parametrize("what", ROUNDS)
def test_the_victim_is_told_another_round_and_the_sum_does_not_open(coordinator, what):
    assert not opens(list(ROUNDS[what](coordinator().open().begin())))


def test_another_step_of_the_lower_problem_than_the_one_that_is_due_is_refused(coordinator):
    session = coordinator().open().begin()
    session.send(VICTIM, forward(1, t=0))
    with pytest.raises(Refused) as refusal:
        session.send("shop", forward(1, t=3))
    assert refusal.value.reason == "ROUND_MISMATCH"


def test_a_skipped_round_is_refused(coordinator):
    session = coordinator().open().begin()
    session.send(VICTIM, rows(1))
    with pytest.raises(Refused) as refusal:
        session.send(VICTIM, rows(3))
    assert refusal.value.reason == "ROUND_MISMATCH"


def test_a_run_keeps_the_spec_that_it_began_with(coordinator, trained):
    """Another spec under the run's id could name every row, or another protection."""
    other = small(train__upper={"steps": 4, "batch": 128}, checkpoint_every=2, alignment="all-rows")
    for purpose in (pb.PURPOSE_TRAIN, pb.PURPOSE_PREDICT):
        with pytest.raises(Refused) as refusal:
            coordinator(run_id=trained).open(dict.fromkeys(NAMES, other), bank={"purpose": purpose})
        assert (refusal.value.party, refusal.value.reason) == (VICTIM, "SPEC_DIFFERS")


def test_no_party_tells_its_ids_and_who_asks_by_id_leaves_a_trace(federation, coordinator, trained):
    texts = dict.fromkeys(NAMES, trained_spec())
    every = {name: {"purpose": pb.PURPOSE_PREDICT} for name in NAMES}
    opened = coordinator(run_id=trained).open(texts, **every).opened[VICTIM]
    assert (opened.rows > 1000, list(opened.ids)) == (True, [])
    log = federation.directory / "state" / VICTIM / "asked-rows.jsonl"
    before = log.read_text().count("}") if log.exists() else 0
    for ids in (["17"], ["17", "nobody", "nobody else"]):
        some = {name: {"purpose": pb.PURPOSE_PREDICT, "ids": ids} for name in NAMES}
        with contextlib.suppress(Refused):
            coordinator(run_id=trained).open(texts, **some)
    assert log.read_text().count("}") == before + 2


def test_a_client_still_predicts_by_the_ids_of_the_label_holder(federation, trained):
    with federation.connect() as client:
        run = client.run(trained)
        every = run.predict()
        assert every.ids[:3] == ["0", "1", "2"]
        np.testing.assert_array_equal(run.predict(ids=["1", "2"]).scores.argmax(1), every.scores[1:3].argmax(1))
        with pytest.raises(RequestRefused, match="not all of the 2 ids"):
            run.predict(ids=["1", "nobody"])


def checkpoint(number):
    return bambi_pb2.Instruction(round=number, checkpoint=bambi_pb2.Checkpoint(k=1))


def receipts_of(session, ledger=None):
    """Everybody's receipts for a checkpoint after round 1."""
    found = {}
    for name in NAMES:
        told = {"ledger_entries": 1, "ledger_head": (ledger or {}).get(name, bytes(32))}
        found[name] = session.exchange(name, checkpoint(2), **told)[0].receipt
    return found


def test_receipts_of_parties_that_were_told_the_same_let_the_session_go_on(coordinator):
    session = coordinator().open().begin()
    for name in NAMES:
        session.send(name, rows(1))
    receipts = receipts_of(session)
    answers = [session.exchange(name, rows(3), receipts=receipts.values())[0] for name in NAMES]
    assert opens([_masked(answer) for answer in answers])


def _told_differently(session):
    session.send(VICTIM, rows(1))
    for name in OTHERS:
        session.send(name, rows(1, first=100))
    return list(receipts_of(session).values())


def _kept_back(session):
    for name in NAMES:
        session.send(name, rows(1))
    receipts_of(session)
    return []


def _one_missing(session):
    return list(_told_the_same(session).values())[:2]


def _told_the_same(session):
    for name in NAMES:
        session.send(name, rows(1))
    return receipts_of(session)


def _forged(session):
    receipts = _told_differently(session)
    for receipt in receipts[1:]:
        receipt.heads[0].head = next(head.head for head in receipts[0].heads if head.party == receipt.party)
    return receipts


def _two_ledgers(session):
    for name in NAMES:
        session.send(name, rows(1))
    return list(receipts_of(session, {"telco": bytes(31) + b"1"}).values())


RECEIPTS = {
    "told differently": _told_differently,
    "receipts kept back": _kept_back,
    "one receipt kept back": _one_missing,
    "forged receipts": _forged,
    "two label ledgers": _two_ledgers,
}


@pytest.mark.parametrize("what", RECEIPTS)
def test_a_party_that_learns_from_receipts_what_others_were_told_ends_the_session(coordinator, what):
    session = coordinator().open().begin()
    receipts = RECEIPTS[what](session)
    with pytest.raises(Refused) as refusal:
        session.exchange(VICTIM, rows(3), receipts=receipts)
    assert refusal.value.reason == "TRANSCRIPT_DIFFERS"


@pytest.mark.parametrize("party", NAMES)
def test_every_party_keeps_a_signed_record_that_holds(federation, trained, party):
    file = TranscriptFile(federation.directory / "state" / party, trained)
    found = check_record(file)
    assert (found.witnessed >= 3, found.releases > 10) == (True, True), "two checkpoints and the end"
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    with federation.connect() as client:
        entries = client.run(trained).ledger().entries
    assert (found.ledger.entries, found.ledger.head.hex()) == (len(entries), entries[-1].hash)
    changed = [line.replace('"releases": ', '"releases": 1') for line in file.path.read_text().splitlines()]
    copy = TranscriptFile(federation.directory / "changed" / party, trained)
    copy.path.parent.mkdir(parents=True)
    copy.path.write_text("\n".join(changed))
    with pytest.raises(TranscriptDiffers, match="signature"):
        check_record(copy)


def test_a_kept_head_shows_a_ledger_that_was_written_anew(federation, trained, tmp_path):
    kept = federation.directory / "state" / VICTIM / "transcripts" / f"{trained}.jsonl"
    ledger = ["ledger", "verify", trained, "--config", str(federation.directory / "coordinator.yaml"), "--head"]
    assert CliRunner().invoke(app, [*ledger, str(kept)]).exit_code == 0
    other = tmp_path / "head.json"
    other.write_text(json.dumps({"entries": 1, "head": "0" * 64}))
    found = CliRunner().invoke(app, [*ledger, str(other)])
    assert (found.exit_code, "written anew" in found.output) == (1, True)


def test_the_command_shows_and_verifies_a_partys_record(federation, trained):
    config = ["--config", str(federation.directory / f"{VICTIM}.yaml"), "--json"]
    shown = json.loads(CliRunner().invoke(app, ["transcript", "show", trained, *config]).output)
    assert {"begin", "receipts", "end"} <= {entry["kind"] for entry in shown}
    assert CliRunner().invoke(app, ["transcript", "verify", trained, *config]).exit_code == 0
    assert CliRunner().invoke(app, ["transcript", "verify", "no-such-run", *config]).exit_code != 0
