"""The contract that every algorithm keeps, as tests: inherit, and say what to try.

    class TestMyAlgorithm(AlgorithmContract):
        case = AlgorithmCase(spec=..., tables=..., pooled=...)

Processes, sockets and certificates are real. What passes between the services is seen by a relay in front of each.
"""

import contextlib
import random
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml
from google.protobuf import descriptor_pool

from parley.client import RequestRefused
from parley.privacy.manifest import NONE_NEEDED
from parley.protocols.manifest import manifest_of
from parley.protocols.tensor.codec import MessageInvalid
from parley.spec.parsing import SpecInvalid, parse_spec
from parley.testing.cases import AlgorithmCase
from parley.testing.federations import Passed
from parley.testing.hand_driven import Outcome
from parley.testing.malformed import changed, changed_push, reframed, undecodable, variants
from parley.testing.manifests import messages_of, numeric, own_fields
from parley.testing.recordings import EXCHANGE, Framed, Recording, fields_of
from parley.testing.remains import wait_for_end
from parley.testing.stage import Killer, RecordedRun, Stage

SEED = 5
VARIANTS = 60
"""Wrong messages that a decoder is given, for each recorded one that is tried."""
ROUNDS = 12
"""Rounds of a recorded run that are made wrong, at most; evenly spread."""
PROBES = 8
"""Sessions that get a changed message."""
PROBE_SECONDS = 1.0
"""A party that was told something odd may wait for its peers; nobody waits for it longer than this."""


class AlgorithmContract:
    """What every algorithm keeps. A subclass sets `case`; tests that need processes share the class's stage."""

    case: ClassVar[AlgorithmCase]

    @pytest.fixture(scope="class")
    def stage(self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
        """The federations that the class's tests share."""
        with Stage(tmp_path_factory.mktemp("contract"), [request.cls.case]) as stage:
            yield stage

    @pytest.fixture
    def recorded(self, stage: Stage) -> RecordedRun:
        """The case's undisturbed run."""
        return stage.recorded(self.case)

    # --- its spec ---------------------------------------------------------------------------------------------------

    def test_a_spec_that_is_written_down_is_read_as_the_same(self) -> None:
        """Parse, dump, parse."""
        dumped = yaml.safe_dump(self.case.parsed.model_dump(mode="json"))
        assert parse_spec(dumped) == self.case.parsed

    def test_an_unknown_setting_is_refused_with_its_field_and_line(self) -> None:
        """A mistyped setting must not be passed over."""
        assert "no_such_setting" in refused(self.case.spec, "no_such_setting", 1)

    def test_a_wrong_setting_is_refused_with_its_field_and_line(self) -> None:
        """Whoever writes a spec is told where the mistake is."""
        for name in type(self.case.parsed.train).model_fields.keys() - {"algorithm"}:
            refused(self.case.spec, name, {"wrong": ["kind"]})

    # --- what leaves ------------------------------------------------------------------------------------------------

    def test_every_field_of_its_messages_is_in_the_manifest_and_nothing_else_is(self) -> None:
        """By descriptor: what the protos can carry, whether a run sends it or not."""
        known = {entry.field for entry in manifest_of(self.case.algorithm)}
        for message in messages_of(self.case.protocol):
            assert not message.GetOptions().map_entry, f"{message.full_name}: a map says nothing about what leaves"
            for field in message.fields:
                assert field.full_name in known, f"{field.full_name} is not in the manifest"
        for entry in self.case.protocol.crossings:
            descriptor_pool.Default().FindFieldByName(entry.field)  # raises where there is no such field

    def test_numbers_and_bytes_say_what_they_are_derived_from(self) -> None:
        """Only what is public may go without protection, and the case says why it is."""
        entries = {entry.field: entry for entry in self.case.protocol.crossings}
        bare = {name for name in numeric(own_fields(self.case.protocol)) if entries[name].protection == NONE_NEEDED}
        assert bare == self.case.public.keys()

    def test_every_field_that_leaves_in_a_run_is_in_the_manifest(self, recorded: RecordedRun) -> None:
        """By recording: every message that passed between the services, down to its last field."""
        known, recording = {entry.field for entry in manifest_of(self.case.algorithm)}, recorded.recording
        seen = set()
        parsed = list(recording.messages())
        assert len(parsed) == len(recording.passed), "something passed that is no message of Parley's services"
        for passed, message in parsed:
            size = message.ByteSize()
            message.DiscardUnknownFields()
            assert message.ByteSize() == size, f"{passed.method}: {passed.sender} sent fields that nobody declares"
            seen |= set(fields_of(message, recording))
        assert seen <= known
        for kind in (self.case.protocol.instruction, self.case.protocol.contribution):
            assert f"{kind.DESCRIPTOR.full_name}.round" in seen

    # --- what comes out ---------------------------------------------------------------------------------------------

    def test_a_run_counts_what_was_foretold(self, stage: Stage, recorded: RecordedRun) -> None:
        """Round trips exactly, and bytes to a tenth; where it cannot be foretold, that is said by name."""
        if not self.case.foretold:
            with pytest.raises(RequestRefused) as refused:
                stage.quiet.client.foretell(self.case.patient_spec)
            assert refused.value.reason == "UNFORETOLD"
            return
        foretold = stage.quiet.client.foretell(self.case.patient_spec)
        counted = recorded.run.result()
        assert counted["rounds"] == foretold.rounds
        assert counted["bytes"] == pytest.approx(foretold.bytes, rel=0.1)

    def test_federated_equals_pooled(self, stage: Stage, recorded: RecordedRun) -> None:
        """The parties end with what one organisation with all the data would have."""
        tolerance = self.case.tolerance
        for party, tensors in self.case.pooled(recorded.run_id).items():
            saved = stage.quiet.model(party, recorded.run_id)
            for name, wanted in tensors.items():
                found, what = np.asarray(saved[name]), f"{name} of {party}"
                np.testing.assert_allclose(found, np.asarray(wanted), tolerance, tolerance, err_msg=what)
        for name, wanted in self.case.metrics().items():
            assert recorded.run.metrics[name] == pytest.approx(wanted, tolerance, tolerance), name

    @pytest.mark.parametrize("order", ["parties first", "coordinator first"])
    def test_killed_and_resumed_it_ends_with_the_same_bits(
        self, stage: Stage, recorded: RecordedRun, order: str
    ) -> None:
        """`kill -9` of every service, spread over a run; models and ledgers are those of one that nothing disturbed."""
        request, arena = f"killed {self.case.parsed.name}, {order}", stage.disturbed
        services = [*self.case.parties, "coordinator"]
        victims = services if order == "parties first" else services[::-1]
        twin = stage.quiet.complete(self.case, request)
        after = len(recorded.recording.passed) // (len(victims) + 1)
        with Killer(arena.federation, victims, after) as killer, arena.federation.tapped(killer):
            run = arena.complete(self.case, request)
        assert not killer.spared, f"the run ended before {killer.spared} were killed"
        assert run.state == "COMPLETED", run.reason
        assert arena.remains(run) == stage.quiet.remains(twin)

    # --- what comes in ----------------------------------------------------------------------------------------------

    def test_an_instruction_is_decoded_or_refused_by_name(self, recorded: RecordedRun) -> None:
        """A party's decoder takes any message of its type, or raises MessageInvalid; nothing else comes out."""
        chance, recording = random.Random(SEED), recorded.recording
        for round_ in _spread(recording.instructions()):
            for message in variants(recording.message(round_[0]), chance, VARIANTS):
                with contextlib.suppress(MessageInvalid):
                    recording.protocol.decode_instruction(message, round_[0].blobs)

    def test_a_contribution_is_decoded_or_refused_by_name(self, stage: Stage, recorded: RecordedRun) -> None:
        """So does the coordinator's, in every round of a run; and a replay sends the instructions of the run."""
        chance, recording = random.Random(SEED), recorded.recording
        instructions = recording.instructions()
        for number, program, release, contributions in stage.replayed(recorded):
            again, _ = program.encode(number, release)
            assert again == recording.message(instructions[number][0]), f"round {number} is another one when repeated"
            framed = chance.choice(contributions)
            for message in variants(recording.message(framed), chance, VARIANTS // 10):
                with contextlib.suppress(MessageInvalid):
                    program.decode(message, framed.blobs, release)

    def test_malformed_instructions_are_refused_and_the_session_goes_on(
        self, stage: Stage, recorded: RecordedRun
    ) -> None:
        """Between the right instructions of a run come wrong ones; it still ends with the same bits."""
        chance, recording, federation = random.Random(SEED), recorded.recording, stage.quiet.federation
        instructions = recording.instructions()
        tried = {id(round_) for round_ in _spread(instructions)}
        for party in self.case.parties:
            (federation.run_directory(party, recorded.run_id) / "model.safetensors").unlink()
        refusals = 0
        with stage.session(recorded, recorded.run_id) as session:
            for round_ in instructions.values():
                wrong = {framed.receiver: undecodable(recording, framed, chance) for framed in round_}
                if id(round_) in tried and None not in wrong.values():
                    wrong = {party: session.with_own_receipts(envelopes) for party, envelopes in wrong.items()}
                    for outcome in session.send(wrong).values():
                        assert outcome == Outcome((), "INVALID_ARGUMENT", "MESSAGE_INVALID")
                        refusals += 1
                answers = session.replay(round_)
                assert all(len(outcome.answers) for outcome in answers.values()), answers
                if id(round_) in tried:
                    assert session.replay(round_) == answers, "a retry gets the same bytes"
        assert refusals
        assert stage.quiet.remains(recorded.run) == recorded.remains

    def test_a_changed_message_is_answered_or_refused_by_name(self, stage: Stage, recorded: RecordedRun) -> None:
        """Whatever a coordinator or a peer sends: never an internal error, and every service lives on."""
        chance, recording = random.Random(SEED), recorded.recording
        rounds, pushes, refusals = list(recording.instructions().values()), recording.pushes(), 0
        for number in range(PROBES):
            at = chance.randrange(min(len(rounds), ROUNDS))
            with stage.session(recorded, f"probe-{self.case.parsed.name}-{number}") as session:
                for round_ in rounds[:at]:
                    session.replay(round_)
                wrong = {framed.receiver: changed(recording, framed, chance) for framed in rounds[at]}
                outcomes = list(session.send(wrong, PROBE_SECONDS).values())
                for framed in chance.sample(pushes, min(len(pushes), 2)):
                    outcomes.append(session.push(changed_push(recording, framed, chance), PROBE_SECONDS))
            for outcome in outcomes:
                assert outcome.is_named or outcome.status == "DEADLINE_EXCEEDED", (number, outcome, wrong)
                refusals += outcome.reason is not None
        assert refusals
        assert all(process.poll() is None for process in stage.quiet.federation.processes.values())

    def test_a_malformed_contribution_ends_the_attempt_by_name_and_the_run_resumes(
        self, stage: Stage, recorded: RecordedRun
    ) -> None:
        """A party that answers wrongly is named; once it answers rightly the run ends with the same bits."""
        request, arena = f"malformed {self.case.parsed.name}", stage.disturbed
        twin = stage.quiet.complete(self.case, request)
        changer = _ContributionChanger(recorded.recording)
        with arena.federation.tapped(changer):
            run = arena.complete(self.case, request)
            assert run.state == "FAILED"
            assert changer.party in run.reason
            assert "MESSAGE_INVALID" in run.reason
            run = wait_for_end(arena.client, run.resume().run_id)
        assert run.state == "COMPLETED", run.reason
        assert arena.remains(run) == stage.quiet.remains(twin)


class _ContributionChanger:
    """A tap that makes one contribution, in the middle of a run, one to another round."""

    def __init__(self, recording: Recording) -> None:
        self._recording, self._left = recording, len(recording.contributions()) // 2 + 1
        self.party = ""

    def __call__(self, passed: Passed) -> bytes:
        """Change the contribution that is due."""
        if passed.method != EXCHANGE or not passed.is_answer or self.party:
            return passed.data
        ((_, envelope),) = Recording(self._recording.protocol, [passed]).messages()
        framed = Framed(passed.sender, passed.receiver, (envelope,))
        message = self._recording.message(framed)
        if message is None or message.round < self._left:
            return passed.data
        self.party = passed.sender
        message.round += 1
        changed_envelope: Any = reframed(self._recording.protocol, framed, message)[0]
        data: bytes = changed_envelope.SerializeToString()
        return data


def refused(text: str, name: str, value: Any) -> str:
    """Set a field of `train` to something; the spec must be refused with that field and its line."""
    content = yaml.safe_load(text)
    content["train"].pop(name, None)
    content["train"][name] = value
    changed_text = yaml.safe_dump(content, sort_keys=False, default_flow_style=False)
    with pytest.raises(SpecInvalid) as invalid:
        parse_spec(changed_text)
    first = next(index for index, line in enumerate(changed_text.splitlines(), 1) if line.startswith(f"  {name}:"))
    problems = [problem for problem in invalid.value.problems if problem.field.startswith(f"train.{name}")]
    assert problems, f"{name}: {invalid.value}"
    assert min(problem.line for problem in problems) >= first
    return str(problems[0])


def _spread(rounds: dict[int, list[Framed]]) -> list[list[Framed]]:
    """Some rounds, evenly spread, the first and the last among them."""
    every = list(rounds.values())
    chosen = sorted({round(index * (len(every) - 1) / max(1, ROUNDS - 1)) for index in range(ROUNDS)})
    return [every[index] for index in chosen]
