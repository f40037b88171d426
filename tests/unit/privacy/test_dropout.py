"""Dropout recovery: the survivors' sum and nothing else."""

from dataclasses import dataclass

import numpy as np
import pytest

from parley.privacy.dropout import (
    BothSharesAsked,
    RoundKeys,
    SelfMask,
    ShareKeeper,
    SharesMissing,
    SharesNotForUs,
    check_threshold,
    round_masker,
    seal_shares,
    unmask,
)
from parley.privacy.pairwise import NotAParticipant
from parley.privacy.ring import Ring
from parley.privacy.session_keys import SessionKey, pair_secret
from parley.privacy.shamir import NotEnoughShares, Share, SharesInconsistent, ThresholdImpossible
from parley.privacy.trees import TooFewParties

RING = Ring.WIDE


@dataclass
class Round:
    keys: RoundKeys
    drawn: dict[int, SelfMask]
    sealed: dict[int, dict[int, bytes]]
    keepers: dict[int, ShareKeeper]
    values: dict[int, np.ndarray]
    answers: dict[int, np.ndarray]

    def expected(self, survivors):
        return sum((self.values[u] for u in survivors), np.zeros(30, RING.dtype))


def share_keys(session_keys, u):
    return {
        v: pair_secret(session_keys[u], f"p{u}", f"p{v}", key.public_bytes, run_id="r", attempt=1, purpose="shares")
        for v, key in session_keys.items()
        if v != u
    }


def run_round(count=5, threshold=4, round_id=3, deliver=True, session_keys=None, members=None) -> Round:
    members = members or range(count)
    session_keys = session_keys or {u: SessionKey.generate() for u in members}
    drawn = {u: SelfMask.generate() for u in members}
    keys = RoundKeys(
        "r",
        1,
        round_id,
        threshold,
        {u: f"p{u}" for u in members},
        {u: d.round_key.public_bytes for u, d in drawn.items()},
    )
    sealed, keepers = {}, {}
    for u in members:
        own, sealed[u] = seal_shares(u, drawn[u], keys, share_keys(session_keys, u))
        keepers[u] = ShareKeeper(u, own, keys, share_keys(session_keys, u))
    if deliver:
        for owner in members:
            for peer, content in sealed[owner].items():
                keepers[peer].accept(owner, content)
    values = {u: RING.encode(np.random.default_rng(u).normal(size=30)) for u in members}
    answers = {u: round_masker(u, drawn[u], keys, RING).mask(round_id, values[u], members) for u in members}
    return Round(keys, drawn, sealed, keepers, values, answers)


@pytest.mark.parametrize("survivors", [{0, 1, 2, 3, 4}, {0, 1, 2, 3}, {1, 2, 3, 4}, {0, 1, 3, 4}], ids=str)
def test_the_survivors_sum_is_exact_whoever_drops_out(survivors):
    r = run_round()
    disclosures = [r.keepers[u].disclose(survivors) for u in survivors]
    total = unmask({u: r.answers[u] for u in survivors}, disclosures, r.keys, RING)
    assert np.array_equal(total, r.expected(survivors))


def test_survivors_may_drop_out_again_before_they_disclose_while_t_remain():
    r = run_round(count=7, threshold=5)
    survivors = {0, 1, 2, 4, 5, 6}
    disclosures = [r.keepers[u].disclose(survivors) for u in (0, 2, 4, 5, 6)]
    total = unmask({u: r.answers[u] for u in survivors}, disclosures, r.keys, RING)
    assert np.array_equal(total, r.expected(survivors))


def test_participants_need_not_be_numbered_without_gaps():
    r = run_round(members=[2, 5, 11, 40], threshold=3)
    survivors = {2, 11, 40}
    disclosures = [r.keepers[u].disclose(survivors) for u in survivors]
    total = unmask({u: r.answers[u] for u in survivors}, disclosures, r.keys, RING)
    assert np.array_equal(total, r.expected(survivors))


def test_without_disclosures_even_the_full_sum_stays_hidden():
    r = run_round()
    blind = sum(r.answers.values(), np.zeros(30, RING.dtype))
    assert not np.intersect1d(blind, r.expected(range(5))).size


def test_fewer_than_t_disclosures_open_nothing():
    r = run_round()
    disclosures = [r.keepers[u].disclose(range(5)) for u in (0, 1, 2)]
    with pytest.raises(NotEnoughShares):
        unmask(r.answers, disclosures, r.keys, RING)


def test_fewer_than_t_survivors_are_refused_by_party_and_coordinator():
    r = run_round()
    with pytest.raises(TooFewParties):
        r.keepers[0].disclose({0, 1, 2})
    with pytest.raises(TooFewParties):
        unmask({u: r.answers[u] for u in (0, 1, 2)}, [], r.keys, RING)


def test_a_disclosure_holds_one_kind_of_share_for_each_peer():
    disclosure = run_round().keepers[0].disclose({0, 1, 2, 3})
    assert disclosure.seed_shares.keys() == {0, 1, 2, 3}
    assert disclosure.key_shares.keys() == {4}


def test_a_party_never_gives_both_kinds_of_share_for_a_peer():
    keeper = run_round().keepers[0]
    first = keeper.disclose({0, 1, 2, 3})
    with pytest.raises(BothSharesAsked, match="would open a value"):
        keeper.disclose({0, 1, 2, 3, 4})
    assert keeper.disclose({0, 1, 2, 3}) is first


def test_a_party_that_answered_does_not_call_itself_dropped():
    with pytest.raises(NotAParticipant):
        run_round().keepers[0].disclose({1, 2, 3, 4})


def test_a_party_waits_for_everybodys_shares():
    r = run_round(deliver=False)
    r.keepers[0].accept(1, r.sealed[1][0])
    with pytest.raises(SharesMissing, match=r"\[2, 3, 4\]"):
        r.keepers[0].ready()


def test_shares_open_only_for_their_recipient_sender_and_round():
    session_keys = {u: SessionKey.generate() for u in range(5)}
    r = run_round(deliver=False, session_keys=session_keys)
    later = run_round(deliver=False, session_keys=session_keys, round_id=4)
    keeper = r.keepers[0]
    with pytest.raises(SharesNotForUs):
        keeper.accept(1, r.sealed[1][2])
    with pytest.raises(SharesNotForUs):
        keeper.accept(1, r.sealed[2][0])
    with pytest.raises(SharesNotForUs):
        keeper.accept(1, later.sealed[1][0])
    with pytest.raises(SharesNotForUs):
        keeper.accept(1, b"")
    keeper.accept(1, r.sealed[1][0])


def test_a_wrong_key_share_is_noticed_by_the_public_key():
    r = run_round()
    survivors = {0, 1, 2, 3}
    disclosures = [r.keepers[u].disclose(survivors) for u in survivors]
    disclosures[0].key_shares[4] = Share(1, disclosures[0].key_shares[4].value ^ 1)
    with pytest.raises(SharesInconsistent):
        unmask({u: r.answers[u] for u in survivors}, disclosures, r.keys, RING)


def test_a_key_recovered_for_one_round_opens_no_other_round():
    session_keys = {u: SessionKey.generate() for u in range(5)}
    first, second = (run_round(session_keys=session_keys, round_id=i) for i in (3, 4))
    assert first.keys.public_keys[4] != second.keys.public_keys[4]
    assert first.keys.mask_secret(4, first.drawn[4].round_key, 0) != second.keys.mask_secret(
        4, first.drawn[4].round_key, 0
    )


@pytest.mark.parametrize(("threshold", "parties", "colluders"), [(2, 3, 1), (3, 5, 1), (5, 8, 2), (6, 5, 0), (2, 4, 0)])
def test_a_threshold_that_lets_both_kinds_of_share_be_collected_is_refused(threshold, parties, colluders):
    with pytest.raises(ThresholdImpossible):
        check_threshold(threshold, parties, colluders)


@pytest.mark.parametrize(("threshold", "parties", "colluders"), [(3, 3, 1), (4, 5, 1), (6, 8, 2), (2, 2, 1), (3, 4, 1)])
def test_a_threshold_above_half_of_parties_and_colluders_is_accepted(threshold, parties, colluders):
    check_threshold(threshold, parties, colluders)


def test_a_party_shares_nothing_under_a_weak_threshold():
    with pytest.raises(ThresholdImpossible):
        run_round(count=5, threshold=3)


def test_a_self_mask_does_not_print_its_seed():
    drawn = SelfMask.generate()
    assert repr(drawn.seed) not in repr(drawn)
