"""Averages with recovery against means in the clear, over exactly the parties whose vectors were used."""

from typing import Any

import numpy as np
import pytest

from parley.party.fedbio import steps as fedbio
from parley.party.fedbio.role import ALGORITHM, settings_of
from parley.party.roles import Begun, Opened
from parley.protocols.fedbio.messages import AveragingRound
from parley.protocols.fedbio.settings import FedbioSpec
from parley.services.coordinator.fleet import PartyLost
from parley.spec.parsing import parse_spec
from tests.oracle.recoverable_federation import NAMES, SPEC, Loss, federation, tables_of

EVERYONE = frozenset(range(len(NAMES)))
FIRST_PHASES = ("variables 0", "momenta 0")


async def averages(directory, losses=(), text=SPEC):
    """The averages at the end of a run with recovery, and how many vectors each of its sums held."""
    async with federation(directory, text, losses=list(losses)) as (_, program, rounds):
        counts, current, generator = [], None, program.rounds(0, lambda _: None)
        answer = None
        while True:
            current = generator.send(answer)
            answer = await rounds.exchange(current)
            counts += [answer.addends] if answer is not None else []
            if current.phase == "finish":
                return program.averages, counts


def pooled(directory, used, text=SPEC):
    """The same run in the clear: each phase's mean is over the parties that `used` names for it."""
    spec = parse_spec(text)
    train = spec.settings(FedbioSpec)
    roles, states = {}, {}
    for index, name in enumerate(NAMES):
        store = tables_of(directory, name)
        opened = Opened(spec, index, "run-1", "s-1", store.load("records"), store)
        role: Any = ALGORITHM.role(Begun(opened, [0] * len(NAMES), 2, None, None))
        roles[index] = fedbio.Party(settings_of(train), role._task.objective)
        states[index] = role.begin(None).inner
    mean, variables = None, None
    for k in range(train.rounds):
        for phase in ("variables", "momenta"):
            vectors = []
            for index in sorted(used(f"{phase} {k}", asked=True)):
                randomness = fedbio.Randomness(spec.seed, NAMES[index])
                asked = AveragingRound(phase, k, tuple(EVERYONE), mean)
                states[index], vector = roles[index].contribute(states[index], asked, randomness)
                vectors += [vector] if index in used(f"{phase} {k}", asked=False) else []
            mean = np.mean(vectors, axis=0)
            variables = mean if phase == "variables" else variables
    return variables, mean


async def test_with_nobody_lost_the_average_is_the_pooled_one(tmp_path):
    found, counts = await averages(tmp_path)
    variables, momenta = pooled(tmp_path, lambda _, asked: EVERYONE)
    np.testing.assert_allclose(found.variables, variables, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.momenta, momenta, rtol=0, atol=1e-6)
    assert counts == [5] * 7


# The second sum of each party is the momenta phase of round 0; its key came with the first one's disclosure.
POINTS = {
    "before its key": (Loss(3, "key", after=False), ()),
    "after its key": (Loss(3, "key", after=True), ()),
    "before its shares": (Loss(3, "shares", after=False, nth=1), FIRST_PHASES[:1]),
    "after its shares were made": (Loss(3, "shares", after=True, nth=1), FIRST_PHASES[:1]),
    "after its shares were given out": (Loss(3, "values", after=False, nth=1), FIRST_PHASES[:1]),
    "with its masked vector on the way": (Loss(3, "values", after=True, nth=1), FIRST_PHASES[:1]),
    "after its masked vector was taken": (Loss(3, "disclosure", after=False, nth=1), FIRST_PHASES),
    "with its disclosure on the way": (Loss(3, "disclosure", after=True, nth=1), FIRST_PHASES),
}


@pytest.mark.parametrize("point", POINTS)
async def test_the_average_is_over_exactly_those_whose_vector_was_used(tmp_path, point):
    loss, phases_with_it = POINTS[point]
    found, counts = await averages(tmp_path, [loss])

    def used(phase, asked):
        return EVERYONE if phase in phases_with_it else EVERYONE - {loss.party}

    variables, momenta = pooled(tmp_path, used)
    np.testing.assert_allclose(found.variables, variables, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.momenta, momenta, rtol=0, atol=1e-6)
    assert counts == [5] * len(phases_with_it) + [4] * (7 - len(phases_with_it))


async def test_a_second_loss_below_the_threshold_ends_the_attempt_and_names_the_party(tmp_path):
    losses = [Loss(3, "values", after=False), Loss(1, "values", after=False, nth=2)]
    with pytest.raises(PartyLost, match="b does not answer"):
        await averages(tmp_path, losses)


async def test_two_lost_at_once_are_too_many_of_five(tmp_path):
    with pytest.raises(PartyLost):
        await averages(tmp_path, [Loss(3, "values", after=False), Loss(1, "values", after=False)])


async def test_who_was_taken_but_does_not_disclose_leaves_enough_others(tmp_path):
    """Threshold 4 of 5: one lost before its vector leaves four, and all four must then disclose."""
    losses = [Loss(3, "values", after=False), Loss(1, "disclosure", after=False)]
    with pytest.raises(PartyLost):
        await averages(tmp_path, losses)


async def test_sampled_parties_recover_too(tmp_path):
    text = SPEC.replace("  rounds: 3", "  rounds: 6\n  parties_per_round: 4")
    found, counts = await averages(tmp_path, [Loss(3, "values", after=False, nth=1)], text)
    assert np.isfinite(found.variables).all()
    assert set(counts[:-1]) == {3, 4}


async def test_a_sum_takes_two_extra_round_trips_and_the_first_one_three(tmp_path):
    async with federation(tmp_path) as (streams, program, rounds):
        generator = program.rounds(0, lambda _: None)
        answer = await rounds.exchange(next(generator))
        assert streams.trips == 4
        await rounds.exchange(generator.send(answer))
        assert streams.trips == 4 + 3
