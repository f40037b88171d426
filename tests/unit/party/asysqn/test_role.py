"""A party with a loop of its own, as its session sees it."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from parley.party.asysqn.role import ALGORITHM
from parley.party.roles import Begun, Opened
from parley.protocols.asysqn.messages import Evaluate, Halt, OpenedTheta, Report, Start, ThetaForward
from parley.protocols.rounds import Checkpoint, Finish
from parley.protocols.tensor.codec import MessageInvalid
from parley.spec.run import RunSpec
from parley.tables.loading import Labels, Table
from tests.unit.party.loopback import loopback

ROWS, PARTIES = 40, 3
RNG = np.random.default_rng(2)
IDS = np.array([f"{row:02d}" for row in range(ROWS)])
LABELS = Labels(IDS, (RNG.random(ROWS) < 0.5).astype(np.int64), ("no", "yes"))


class OwnLabels:
    """The party's tables."""

    def labels(self, name, classes=None, kind="classes"):
        return LABELS


def run(schedule):
    return RunSpec.model_validate(
        {
            "name": "loops",
            "table": "table",
            "parties": [f"party-{m}" for m in range(PARTIES)],
            "split": {"lower": f"0:{ROWS}", "upper": "lower", "test": 0.0},
            "train": {"algorithm": "asysqn", "schedule": schedule, "batch": 8},
            "privacy": {"aggregation": {"kind": "plain"}},
        }
    )


async def federation(schedule="asynchronous"):
    links, spec, roles = loopback(PARTIES), run(schedule), []
    for m in range(PARTIES):
        table = Table(IDS, RNG.standard_normal((ROWS, 2)), ["a", "b"], "table")
        opened = Opened(spec, m, "run-1", "session-1", table, OwnLabels())
        role = ALGORITHM.role(Begun(opened, [2] * PARTIES, 1, links[m], lambda _: {}))
        roles.append((role, await asyncio.to_thread(role.begin, None)))
    return roles


@pytest.fixture
async def roles():
    found = await federation()
    yield found
    for role, state in found:
        await role.stop(state)


async def everyone(roles, ask):
    return await asyncio.gather(*(role.act(state, (None, ask)) for role, state in roles))


async def stepped(roles, steps):
    """Let the loops work until each has made some more steps."""

    async def made():
        return np.array([plan.state.state.steps for plan in await everyone(roles, Report())])

    goal = await made() + steps
    async with asyncio.timeout(60):
        while (await made() < goal).any():  # noqa: ASYNC110 (what is waited for is a state, and no event)
            await asyncio.sleep(0.01)


async def test_a_party_that_stops_keeps_its_newest_state_as_its_last_checkpoint(roles):
    await everyone(roles, Start())
    await stepped(roles, 2)
    (kept, *_) = await everyone(roles, Checkpoint(10))
    await stepped(roles, 2)
    role, state = roles[0]
    plan = await role.stop(state)
    assert kept.checkpoint == plan.checkpoint == plan.state.k == 10
    assert plan.state.state.steps > kept.state.state.steps
    assert plan.earlier_checkpoint is None, "everybody has written 10, or nobody would have been asked again"


async def test_a_party_that_stops_where_others_may_lack_the_last_checkpoint_keeps_its_state_as_two(roles):
    await everyone(roles, Start())
    await everyone(roles, Checkpoint(10))
    await stepped(roles, 1)
    await everyone(roles, Checkpoint(20))
    role, state = roles[0]
    plan = await role.stop(state)
    assert (plan.earlier_checkpoint, plan.checkpoint) == (10, 20)


async def test_a_party_that_never_started_has_nothing_to_keep(roles):
    await everyone(roles, Report())
    role, state = roles[0]
    assert (await role.stop(state)).checkpoint is None


async def test_a_restored_party_goes_on_with_the_same_bits(roles):
    await everyone(roles, Start())
    await stepped(roles, 3)
    await everyone(roles, Halt())
    role, _ = roles[0]
    kept = (await everyone(roles, Checkpoint(7)))[0].state
    again, _ = (await federation())[0]
    restored = again.begin(role.tensors(kept))
    assert restored.k == 7
    assert replace(restored, state=kept.state, others=kept.others) == kept
    for name, tensor in role.tensors(kept).items():
        assert np.array_equal(tensor.numpy(), again.tensors(restored)[name].numpy()), name
    await again.stop(restored)


async def test_the_loops_model_is_what_is_evaluated_and_saved(roles):
    await everyone(roles, Start())
    await stepped(roles, 3)
    await everyone(roles, Halt())
    plans = await everyone(roles, Evaluate())
    finished = await everyone(roles, Finish())
    for (role, _), plan, end in zip(roles, plans, finished, strict=True):
        weights = role.model_tensors(end.state)["weights"].numpy()
        assert end.finished
        assert plan.draft[-1] == pytest.approx(weights @ weights)


@pytest.mark.parametrize("instruction", [(None, ThetaForward("rows")), (OpenedTheta(np.zeros(8)), Report())])
async def test_a_party_with_a_loop_takes_no_sums_of_the_coordinator(roles, instruction):
    role, state = roles[0]
    with pytest.raises(MessageInvalid):
        await role.act(state, instruction)


@pytest.mark.parametrize("ask", [Start(), Halt()])
async def test_a_party_behind_a_barrier_has_no_loop(ask):
    for role, state in await federation("synchronous"):
        with pytest.raises(MessageInvalid, match="asynchronous"):
            await role.act(state, (None, ask))
        await role.stop(state)
