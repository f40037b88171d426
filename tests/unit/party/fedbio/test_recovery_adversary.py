"""What a party refuses to a coordinator that does not keep to the steps of a recoverable sum."""

import asyncio
from collections import deque
from dataclasses import replace

import pytest

from parley.contracts.fedbio.v1 import fedbio_pb2
from parley.party.fedbio.role import ParticipantsRefused
from parley.privacy.dropout import BothSharesAsked, SharesNotForUs
from parley.privacy.pairwise import NotAParticipant, RoundReused
from parley.privacy.recovery import (
    AskDisclosure,
    AskKey,
    AskShares,
    AskValues,
    InstructionReplaced,
    RoundKeyReplaced,
    StepUnexpected,
)
from parley.privacy.release import ClearRelayGate, bitmap
from parley.privacy.session_keys import CertificateNotPinned, SessionKey
from parley.privacy.trees import TooFewParties
from parley.protocols.fedbio.codec import PROTOCOL
from parley.protocols.fedbio.messages import AveragingRound
from parley.protocols.recovery.codec import common_digest, encode_step
from parley.services.coordinator.recovery import SettledOtherwise, members_of, merge_settled
from parley.services.party.refusals import CATALOGUE
from parley.services.party.sum_journal import SumJournal
from tests.oracle.recoverable_federation import SPEC, Loss, federation

EVERYONE = frozenset(range(5))


def run(directory, scenario, **options):
    """Tell a scenario in a federation that has begun."""

    async def in_federation():
        async with federation(directory, **options) as members:
            return await scenario(*members)

    return asyncio.run(in_federation())


async def ask(streams, party, step, participants=EVERYONE, phase=fedbio_pb2.PHASE_VARIABLES, k=0):
    """One instruction straight to a party, whatever the protocol says."""
    number = streams.next_number()
    message = fedbio_pb2.Instruction(round=number, phase=phase, k=k, participants=bitmap(participants))
    if step is not None:
        if isinstance(step, AskShares) and not step.instruction:
            step = replace(step, instruction=common_digest(message, deque()))
        message.recovery.CopyFrom(encode_step(ClearRelayGate().release(step)))
    answer, _ = await streams.sessions[party].handle(message, deque())
    return answer


async def keys_of(streams, parties=EVERYONE):
    return {party: (await ask(streams, party, AskKey())).round_key.public_key for party in sorted(parties)}


async def one_phase(program, rounds):
    generator = program.rounds(0, lambda _: None)
    await rounds.exchange(next(generator))


def test_a_replaced_round_key_is_found_before_any_vector_leaves(tmp_path):
    sent = []

    def replace_key(party, message):
        if message.recovery.WhichOneof("ask") == "shares" and party == 0:
            message.recovery.shares.keys[2].public_key = SessionKey.generate().public_bytes
        sent.append(message.recovery.WhichOneof("ask"))

    async def scenario(_streams, program, rounds):
        with pytest.raises(SharesNotForUs, match="replaced a round key"):
            await one_phase(program, rounds)

    run(tmp_path, scenario, rewrite=replace_key)
    assert sent.count("values") == 1, "party 0 was the first to be asked, and refused"


def test_every_other_party_refuses_the_shares_of_one_that_was_given_a_false_list(tmp_path):
    async def scenario(streams, _program, _rounds):
        keys = await keys_of(streams)
        false = keys | {2: SessionKey.generate().public_bytes}
        sealed = {}
        for party in sorted(EVERYONE):
            answer = await ask(streams, party, AskShares(1, false if party == 0 else keys))
            sealed[party] = {one.party: one.sealed for one in answer.shares.shares}
        for party in sorted(EVERYONE):
            mine = {owner: bundle[party] for owner, bundle in sealed.items() if owner != party}
            with pytest.raises(SharesNotForUs):
                await ask(streams, party, AskValues(1, mine))

    run(tmp_path, scenario)


def changed_mean(message):
    """An average of zeros, where the other parties get the real one."""
    message.mean.data = bytes(len(message.mean.data))


def test_another_average_than_the_one_that_was_agreed_on_gets_no_vector(tmp_path):
    def replace_mean(party, message):
        if party == 0 and message.HasField("mean"):
            changed_mean(message)

    async def scenario(_streams, program, rounds):
        generator = program.rounds(0, lambda _: None)
        total = await rounds.exchange(next(generator))
        with pytest.raises(InstructionReplaced):
            await rounds.exchange(generator.send(total))

    run(tmp_path, scenario, rewrite=replace_mean)


def test_a_party_that_agrees_on_another_average_than_the_others_gets_no_shares_that_open(tmp_path):
    """The coordinator tells party 0 a digest that fits what it will tell it."""

    def replace_both(party, message):
        if party != 0:
            return
        if message.recovery.WhichOneof("ask") == "shares" and mean.HasField("mean"):
            expected = fedbio_pb2.Instruction()
            expected.CopyFrom(mean)
            changed_mean(expected)
            message.recovery.shares.instruction = common_digest(expected, deque())
        if message.HasField("mean"):
            changed_mean(message)

    mean = fedbio_pb2.Instruction()

    async def scenario(_streams, program, rounds):
        generator = program.rounds(0, lambda _: None)
        following = generator.send(await rounds.exchange(next(generator)))
        mean.CopyFrom(program.encode(0, program.gate.release(following.among(tuple(sorted(EVERYONE)))))[0])
        with pytest.raises(SharesNotForUs, match="told different things"):
            await rounds.exchange(following)

    run(tmp_path, scenario, rewrite=replace_both)


def test_a_party_knows_its_own_round_key(tmp_path):
    async def scenario(streams, _program, _rounds):
        keys = await keys_of(streams)
        with pytest.raises(RoundKeyReplaced):
            await ask(streams, 3, AskShares(1, keys | {3: SessionKey.generate().public_bytes}))

    run(tmp_path, scenario)


@pytest.mark.parametrize("first", [EVERYONE, EVERYONE - {4}])
def test_both_kinds_of_share_are_given_to_nobody(tmp_path, first):
    second = (EVERYONE - {4}) if first == EVERYONE else EVERYONE
    losses = [] if first == EVERYONE else [Loss(4, "values", after=True)]

    async def scenario(streams, program, rounds):
        await one_phase(program, rounds)
        with pytest.raises(BothSharesAsked):
            await ask(streams, 0, AskDisclosure(1, second))
        again = await ask(streams, 0, AskDisclosure(1, first))
        assert len(again.disclosure.seeds) == len(first)

    run(tmp_path, scenario, losses=losses)


def test_two_parties_that_get_different_lists_of_participants_refuse_each_others_shares(tmp_path):
    async def scenario(streams, _program, _rounds):
        keys = await keys_of(streams)
        some = {party: key for party, key in keys.items() if party != 4}
        own = await ask(streams, 0, AskShares(1, some), EVERYONE - {4})
        others = {p: await ask(streams, p, AskShares(1, keys)) for p in (1, 2, 3)}
        sealed = {p: next(s.sealed for s in answer.shares.shares if s.party == 0) for p, answer in others.items()}
        assert len(own.shares.shares) == 3
        with pytest.raises(SharesNotForUs):
            await ask(streams, 0, AskValues(1, sealed), EVERYONE - {4})

    run(tmp_path, scenario)


def test_a_sums_number_is_used_once(tmp_path):
    async def scenario(streams, program, rounds):
        await one_phase(program, rounds)
        with pytest.raises(RoundReused):
            await ask(streams, 0, AskShares(1, await keys_of(streams)))

    run(tmp_path, scenario)


def test_a_party_that_left_is_never_taken_back_in_a_session(tmp_path):
    async def scenario(streams, program, rounds):
        await one_phase(program, rounds)
        with pytest.raises(ParticipantsRefused, match=r"without \[4\], who left"):
            await ask(streams, 0, AskKey(), k=1)

    run(tmp_path, scenario, losses=[Loss(4, "values", after=True)])


def test_a_sum_that_too_few_could_open_is_not_begun(tmp_path):
    async def scenario(streams, _program, _rounds):
        few = frozenset({0, 1, 2})
        keys = await keys_of(streams, few)
        with pytest.raises(TooFewParties, match="4 must be left"):
            await ask(streams, 0, AskShares(1, keys), few)

    run(tmp_path, scenario)


def test_too_few_survivors_open_nothing(tmp_path):
    losses = [Loss(p, "disclosure", after=False) for p in (1, 2)]  # they sent vectors; nobody has disclosed yet

    async def scenario(streams, program, rounds):
        streams.losses += [Loss(0, "disclosure", after=False)]
        with pytest.raises(ConnectionError):
            await one_phase(program, rounds)
        with pytest.raises(TooFewParties):
            await ask(streams, 0, AskDisclosure(1, frozenset({0, 3, 4})))
        with pytest.raises(NotAParticipant):
            await ask(streams, 0, AskDisclosure(1, frozenset({1, 2, 3, 4})))

    run(tmp_path, scenario, losses=losses)


def test_steps_come_in_their_order_and_only_where_the_spec_has_them(tmp_path):
    async def scenario(streams, _program, _rounds):
        with pytest.raises(StepUnexpected, match="by steps"):
            await ask(streams, 0, None)
        with pytest.raises(StepUnexpected, match="by steps"):
            await ask(streams, 0, AskKey(), phase=fedbio_pb2.PHASE_FINISH)
        with pytest.raises(StepUnexpected, match="no round key"):
            await ask(streams, 0, AskShares(1, dict.fromkeys(range(5), bytes(32))))
        with pytest.raises(StepUnexpected, match="not open"):
            await ask(streams, 0, AskValues(1, {}))
        await ask(streams, 0, AskShares(1, await keys_of(streams)))
        with pytest.raises(StepUnexpected, match="nothing to open"):
            await ask(streams, 0, AskDisclosure(1, EVERYONE))

    run(tmp_path, scenario)


def test_a_run_without_recovery_knows_no_steps(tmp_path):
    async def scenario(streams, _program, _rounds):
        with pytest.raises(StepUnexpected, match="asks for no recovery"):
            await ask(streams, 0, AskKey())

    run(tmp_path, scenario, text=SPEC.replace(", recovery: true", ""))


def test_every_refusal_has_a_name_of_its_own():
    assert {CATALOGUE[error].reason for error in (BothSharesAsked, SharesNotForUs)} == {
        "BOTH_SHARES_ASKED",
        "SHARES_REFUSED",
    }


def test_a_phase_that_is_made_again_is_summed_over_the_same_parties_or_not_at_all(tmp_path):
    """Values are the same when a round is made again: two sums over different parties would differ by a value."""
    stores = tmp_path / "first"

    async def first(_streams, program, rounds):
        await one_phase(program, rounds)

    async def again(streams, _program, _rounds):
        with pytest.raises(ParticipantsRefused, match="never summed over others"):
            await ask(streams, 0, AskKey())
        await ask(streams, 0, AskKey(), EVERYONE - {4})

    run(stores, first, losses=[Loss(4, "values", after=True)])
    second = tmp_path / "second"
    second.mkdir()
    for party in "abcd":
        (stores / f"state-{party}").rename(second / f"state-{party}")
    run(second, again)


def test_an_evaluation_is_not_repeated_without_a_party(tmp_path):
    async def scenario(streams, _program, rounds):
        evaluation = AveragingRound("evaluate", 0, tuple(range(5)))
        first = await rounds.exchange(evaluation)
        assert first.addends == 5
        with pytest.raises(ParticipantsRefused):
            await ask(streams, 0, AskKey(), EVERYONE - {4}, fedbio_pb2.PHASE_EVALUATE)

    run(tmp_path, scenario)


def test_what_the_others_report_counts_for_the_last_sum_that_a_party_missed_and_no_more(tmp_path):
    journal = SumJournal(tmp_path / "sums.log", PROTOCOL.recovery.phases)
    journal.note("variables", 3, 0b1111)
    reports = [("momenta", 2, 0b0111), ("variables", 3, 0b0111), ("momenta", 3, 0b0111), ("variables", 4, 0b1110)]
    journal.learn(reports, index=0)
    assert (journal.get("variables", 3), journal.get("momenta", 3)) == (0b1111, 0b0111)
    assert (journal.get("momenta", 2), journal.get("variables", 4)) == (None, None)
    assert list(SumJournal(tmp_path / "sums.log", PROTOCOL.recovery.phases).since(0)) == [("variables", 3, 0b1111)]


def test_a_disclosure_is_noted_for_the_phase_whose_value_was_sent(tmp_path):
    async def scenario(streams, program, rounds):
        await one_phase(program, rounds)
        with pytest.raises(StepUnexpected, match="nothing to open"):
            await ask(streams, 0, AskDisclosure(1, EVERYONE), k=7)
        with pytest.raises(StepUnexpected, match="nothing to open"):
            await ask(streams, 0, AskDisclosure(1, EVERYONE), phase=fedbio_pb2.PHASE_EVALUATE)

    run(tmp_path, scenario)


def test_a_line_of_the_journal_that_was_cut_short_is_written_over(tmp_path):
    path = tmp_path / "sums.log"
    SumJournal(path, PROTOCOL.recovery.phases).note("variables", 3, 0b1111)
    with path.open("ab") as file:
        file.write(b"3 momen")
    SumJournal(path, PROTOCOL.recovery.phases).note("momenta", 3, 0b111)
    assert path.read_text() == "3 variables f\n3 momenta 7\n"
    assert list(SumJournal(path, PROTOCOL.recovery.phases).since(4)) == []


def test_parties_that_report_different_participants_of_a_sum_end_the_run():
    reports = [[("variables", 3, 0b111)], [("variables", 3, 0b111), ("momenta", 3, 0b11)]]
    assert members_of(merge_settled(reports)) == {("variables", 3): (0, 1, 2), ("momenta", 3): (0, 1)}
    with pytest.raises(SettledOtherwise, match="start a new run"):
        merge_settled([*reports, [("momenta", 3, 0b101)]])


def test_a_party_that_pins_a_certificate_takes_no_other_one_of_the_same_name(tmp_path):
    async def nothing(*_members):
        return None

    with pytest.raises(CertificateNotPinned, match="b shows the certificate"):
        run(tmp_path / "wrong", nothing, pins={"b": "0" * 64})
    run(tmp_path / "right", nothing, pins={"nobody here": "0" * 64})
