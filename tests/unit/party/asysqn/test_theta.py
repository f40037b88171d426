"""Sums of θ that parties ask each other for, and the loops that step from them; messages cross as bytes."""

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from parley.numerics.gradient_estimators import as_features
from parley.numerics.linear_losses import Logistic
from parley.party.asysqn import steps as asysqn
from parley.party.asysqn.block import Block
from parley.party.asysqn.loop import Pace, UpdateLoop
from parley.party.asysqn.state import Latest, LoopState
from parley.party.asysqn.sums import SumsUnderMasks, SumsUpTrees
from parley.party.asysqn.theta import ThetaAnswers, ThetaRequests, question_of
from parley.party.peers import PeerFlooded, PeerLost
from parley.privacy.aggregation import SumOutOfRange
from parley.privacy.pairwise import SumDoesNotOpen
from parley.privacy.requested_sums import RequestedMaskedSums, RequestedTreeSums
from parley.protocols.asysqn.codec import encode_partial, encode_request, encode_share
from parley.protocols.asysqn.messages import AllRows, Batch, ThetaRequest
from parley.protocols.asysqn.settings import AsynchronySpec
from parley.protocols.tensor.codec import MessageInvalid
from parley.spec.protection import AggregationSpec
from tests.unit.party.loopback import loopback

PARTIES, ROWS, COLUMNS = 4, 60, 2
NAMES = [f"party-{m}" for m in range(PARTIES)]
RNG = np.random.default_rng(5)
FEATURES = RNG.standard_normal((ROWS, PARTIES * COLUMNS))
LABELS = np.where(FEATURES @ RNG.standard_normal(PARTIES * COLUMNS) > 0, 1.0, -1.0)
SETTINGS = asysqn.Settings(batch_size=16, regularisation=1e-2, pair_every=2, snapshot_every=8)
PRECISION = PARTIES * 2.0**-40
MOST_WAITING = 4


def secret(one, other, requester):
    return bytes([min(one, other), max(one, other), requester]) + bytes(29)


def sums_of(kind, index, peers):
    settings = AggregationSpec(kind=kind)

    def secrets(requester):
        return {other: secret(index, other, requester) for other in range(PARTIES) if other != index}

    if kind == "two_tree":
        return SumsUpTrees(index, RequestedTreeSums(index, PARTIES, settings, secrets, "spoil"), peers, MOST_WAITING)
    return SumsUnderMasks(index, RequestedMaskedSums(index, PARTIES, settings, secrets, "spoil"), peers, MOST_WAITING)


class Party:
    """One party of the federation, as its role puts it together."""

    def __init__(self, kind, index, peers, worker, seconds, limits):
        columns = as_features(FEATURES[:, index * COLUMNS : (index + 1) * COLUMNS])
        data = asysqn.PartyData(NAMES[index], columns)
        self.block = Block(SETTINGS, data, columns[:0], columns, Logistic(), LABELS, NAMES)
        weights = np.full(COLUMNS, 0.1 * (index + 1))
        self.latest = Latest(LoopState(asysqn.start(data, weights), np.zeros(ROWS)))
        self.peers, sums = peers, sums_of(kind, index, peers)
        self.requests = ThetaRequests(index, PARTIES, peers, sums, seconds)
        self.answers = ThetaAnswers(
            self.block, self.latest, peers, sums, worker, most_waiting=MOST_WAITING, seconds=seconds
        )
        self.loop = UpdateLoop(
            self.block, index, limits, self.latest, self.requests, self.answers, Pace(0.0, 1.0), worker
        )

    @property
    def weights(self):
        return self.latest.loop_state.state.weights

    def own(self, rows):
        return self.block.share(self.latest.loop_state.state, NAMES.index(self.block.data.party), rows)


@pytest.fixture(params=["two_tree", "pairwise", "plain"])
async def federation(request):
    """Makes a federation of parties, each of which answers the others."""
    parties = []
    with ThreadPoolExecutor(max_workers=1) as worker:

        def make(*, away=frozenset(), seconds=5.0, limits=None):
            links = loopback(PARTIES, away)
            limits = limits or AsynchronySpec()
            parties.extend(Party(request.param, m, links[m], worker, seconds, limits) for m in range(PARTIES))
            return parties

        yield make
        for party in parties:
            await party.loop.stop()
            await party.answers.close()


def theta(parties, rows=slice(None)):
    return FEATURES[rows] @ np.concatenate([party.weights for party in parties])


async def test_every_party_opens_the_sum_of_everyones_shares_though_all_ask_at_once(federation):
    parties = federation()
    for name in (AllRows(), Batch(0, 0), Batch(1, 7)):
        opened = await asyncio.gather(*(party.requests.read(name, party.own(name)) for party in parties))
        for m, party in enumerate(parties):
            rows = slice(None) if isinstance(name, AllRows) else party.block.row_numbers(m, name)
            np.testing.assert_allclose(opened[m].values, theta(parties, rows), rtol=0, atol=PRECISION)
    assert [party.answers.answered for party in parties] == [3 * (PARTIES - 1)] * PARTIES


async def test_an_answer_is_made_at_the_newest_state_of_whoever_answers(federation):
    parties = federation()
    moved = parties[2].latest.loop_state
    parties[2].latest.loop_state = replace(moved, state=asysqn.start(parties[2].block.data, np.array([5.0, -3.0])))
    opened = await parties[0].requests.read(AllRows(), parties[0].own(AllRows()))
    np.testing.assert_allclose(opened.values, theta(parties), rtol=0, atol=PRECISION)


async def test_a_sum_without_a_party_that_is_away_is_given_up_and_the_next_one_is_whole(federation):
    away = {3}
    parties = federation(away=away)
    with pytest.raises(PeerLost):
        await parties[0].requests.read(AllRows(), parties[0].own(AllRows()))
    away.clear()
    opened = await parties[0].requests.read(AllRows(), parties[0].own(AllRows()))
    np.testing.assert_allclose(opened.values, theta(parties), rtol=0, atol=PRECISION)


async def test_requests_beyond_the_limit_are_refused_and_those_that_wait_are_answered(federation):
    parties = federation()
    for number in range(1, MOST_WAITING + 1):
        parties[0].peers.take(1, "theta_request", encode_request(ThetaRequest(number, Batch(0, number))))
    with pytest.raises(PeerFlooded, match="ask again later"):
        parties[0].peers.take(1, "theta_request", encode_request(ThetaRequest(99, Batch(0, 99))))
    async with asyncio.timeout(60):
        while True:
            try:
                parties[0].peers.take(1, "theta_request", encode_request(ThetaRequest(100, Batch(0, 100))))
                break
            except PeerFlooded:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("federation", ["two_tree", "pairwise"], indirect=True)
@pytest.mark.parametrize("weight", [np.nan, 1e9])
async def test_a_sum_with_a_party_that_diverged_does_not_open_and_nobody_is_told_whose_share_it_was(federation, weight):
    parties = federation(seconds=0.3)
    parties[2].latest.loop_state = replace(
        parties[2].latest.loop_state, state=asysqn.start(parties[2].block.data, np.array([weight, 0.0]))
    )
    with pytest.raises(SumOutOfRange, match="one of the parties"):
        await parties[0].requests.read(AllRows(), parties[0].own(AllRows()))
    assert all(party.answers.failure is None for party in parties)


@pytest.mark.parametrize("kind", ["pairwise", "two_tree"])
@pytest.mark.parametrize("asked", [Batch(0, 1), AllRows()])
async def test_a_requester_that_asks_each_peer_for_something_else_opens_nothing(kind, asked):
    links = loopback(PARTIES)
    sums = [sums_of(kind, index, links[index]) for index in range(PARTIES)]
    own = question_of(ThetaRequest(1, Batch(0, 0)))
    answers = [
        sums[index].contribute(0, 1, np.ones(4), own if index < PARTIES - 1 else question_of(ThetaRequest(1, asked)))
        for index in range(1, PARTIES)
    ]
    with pytest.raises(SumDoesNotOpen):
        await asyncio.gather(sums[0].open(1, np.ones(4), own), *answers)


@pytest.mark.parametrize("requester", [0, PARTIES])
@pytest.mark.parametrize("kind", ["pairwise", "two_tree"])
async def test_a_part_for_another_way_of_summing_or_for_nobody_is_refused(kind, requester):
    links = loopback(PARTIES)
    secrets = {other: bytes(32) for other in range(PARTIES) if other != 1}
    trees = RequestedTreeSums(1, PARTIES, AggregationSpec(kind="two_tree"), lambda _: secrets)
    trees.gates[0].begin(1, np.zeros(2))
    leaf = next(tree for tree in ("values", "masks") if not trees.gates[0].children(1, tree))
    by_tree = encode_partial(requester, trees.gates[0].forward(1, leaf, []), deque())
    masks = RequestedMaskedSums(1, PARTIES, AggregationSpec(kind="plain"), lambda _: {})
    by_share = encode_share(requester, 1, masks.gates[0].release(1, np.zeros(2)), deque())
    sums_of(kind, 0, links[0])
    wrong = by_share if (kind == "two_tree") == (requester == 0) else by_tree
    with pytest.raises(MessageInvalid):
        links[0].take(1, "partial_theta", wrong)


async def until(condition, seconds=60):
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (what is waited for is a state, and no event)
            await asyncio.sleep(0.01)


def gradient_norm(parties):
    slopes = Logistic().derivative(theta(parties), LABELS)
    weights = np.concatenate([party.weights for party in parties])
    return np.linalg.norm(FEATURES.T @ slopes / ROWS + SETTINGS.regularisation * weights)


async def test_loops_that_wait_for_nobody_reach_the_optimum(federation):
    parties = federation()
    for party in parties:
        party.loop.heard = asyncio.get_running_loop().time()
        party.loop.start()
    await until(lambda: gradient_norm(parties) < 1e-5)
    states = [party.latest.loop_state for party in parties]
    assert all(state.calls >= state.state.steps > 0 == state.updates_alone for state in states)
    assert not any(party.loop.failure or party.answers.failure for party in parties)


async def test_a_loop_makes_a_few_steps_alone_while_a_party_is_away_and_goes_on_when_it_is_back(federation):
    away = set()
    parties = federation(away=away, limits=AsynchronySpec(steps_alone=3))
    loop, latest = parties[0].loop, parties[0].latest
    loop.heard = asyncio.get_running_loop().time()
    loop.start()
    await until(lambda: latest.loop_state.state.steps >= 2)
    away.add(3)
    await until(lambda: latest.loop_state.updates_alone >= 3)
    steps = latest.loop_state.state.steps
    await asyncio.sleep(0.3)
    assert latest.loop_state.updates_alone == 3
    assert latest.loop_state.state.steps == steps, "no further step on values that have grown old"
    away.clear()
    await until(lambda: latest.loop_state.state.steps > steps + 2)
    assert latest.loop_state.updates_alone == 3
