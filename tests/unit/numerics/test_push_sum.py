import numpy as np
import pytest

from parley.numerics.networks import NetworkKind, NetworkPlan, in_neighbours, links, out_neighbours, push_weights
from parley.numerics.push_sum import (
    Mass,
    MassMismatch,
    Misdelivered,
    RunningTotal,
    TotalMessage,
    WeightVanished,
    absorb,
    emit,
    estimate,
    from_arrays,
    gather,
    initial_mass,
    join,
    split,
    to_arrays,
)
from parley.numerics.streams import stream

PLAN = NetworkPlan(NetworkKind.RANDOM_DIRECTED, size=5, seed=4)


def values(size=5, width=3):
    return stream(8, "values").normal(size=(size, width))


def plain_run(initial, steps, arrives=lambda step, sender, receiver: True):
    masses = [initial_mass(row) for row in initial]
    for step in range(steps):
        matrix = links(PLAN, step)
        halves = [split(mass, out_neighbours(matrix, i)) for i, mass in enumerate(masses)]
        masses = [
            gather(kept, [halves[j][1][i] for j in in_neighbours(matrix, i) if arrives(step, j, i)])
            for i, (kept, _) in enumerate(halves)
        ]
    return masses


def robust_run(initial, steps, deliveries):
    """Emit at every step and absorb what `deliveries(step, fresh)` hands over."""
    states = [join(i, row) for i, row in enumerate(initial)]
    for step in range(steps):
        matrix = links(PLAN, step)
        fresh = []
        for i in range(len(states)):
            states[i], messages = emit(states[i], out_neighbours(matrix, i))
            fresh += messages
        for message in deliveries(step, fresh):
            states[message.receiver] = absorb(states[message.receiver], message)
    return states


def faulty(seed, loss):
    """Lose, duplicate and reorder: every message that ever existed may come again, late."""
    past = []

    def deliveries(step, fresh):
        draw = stream(seed, "faults", 0, step)
        arrived = [message for message in fresh if draw.random() >= loss]
        again = [past[i] for i in draw.integers(len(past), size=3)] if past else []
        past.extend(fresh)
        mixed = arrived + again
        return [mixed[i] for i in draw.permutation(len(mixed))]

    return deliveries


def test_a_synchronous_step_is_a_product_with_the_push_weights():
    initial = values()
    matrix = links(PLAN, 0)
    after = plain_run(initial, 1)
    np.testing.assert_allclose(np.stack([mass.z for mass in after]), push_weights(matrix) @ initial)
    np.testing.assert_allclose([mass.weight for mass in after], push_weights(matrix) @ np.ones(5))


def test_every_member_of_a_directed_network_reaches_the_average():
    initial = values()
    for mass in plain_run(initial, 120):
        np.testing.assert_allclose(estimate(mass), initial.mean(axis=0), atol=1e-12)


def test_under_loss_the_plain_form_agrees_on_a_wrong_value_and_the_robust_form_is_exact_on_the_same_trace():
    initial = values()
    lost = {(step, j, i) for step in range(400) for j in range(5) for i in range(5)
            if stream(1, "loss", 5 * i + j, step).random() < 0.3}  # fmt: skip

    plain = np.stack([estimate(m) for m in plain_run(initial, 400, lambda *edge: edge not in lost)])
    robust = robust_run(
        initial,
        400,
        lambda step, fresh: [m for m in fresh if (step, m.sender, m.receiver) not in lost],
    )
    estimates = np.stack([estimate(state.held) for state in robust])

    assert np.ptp(plain, axis=0).max() < 1e-9, "the plain form agrees perfectly"
    assert np.abs(plain - initial.mean(axis=0)).max() > 0.05, "and is wrong"
    np.testing.assert_allclose(estimates, np.broadcast_to(initial.mean(axis=0), (5, 3)), atol=1e-12)


def test_loss_duplicates_and_reordering_leave_the_robust_average_exact():
    initial = values()
    for state in robust_run(initial, 600, faulty(seed=2, loss=0.3)):
        np.testing.assert_allclose(estimate(state.held), initial.mean(axis=0), atol=1e-12)


def test_a_restart_from_persisted_arrays_changes_no_bit():
    states = robust_run(values(), 40, faulty(seed=3, loss=0.2))
    restored = from_arrays(to_arrays(states[0]))
    again, messages = emit(restored, (1, 2))
    straight, expected = emit(states[0], (1, 2))
    assert again.held.z.tobytes() == straight.held.z.tobytes()
    assert [m.total.mass.z.tobytes() for m in messages] == [m.total.mass.z.tobytes() for m in expected]
    assert [m.total.sequence for m in messages] == [m.total.sequence for m in expected]
    assert restored.received.keys() == states[0].received.keys()


def test_a_member_that_falls_back_to_its_last_checkpoint_and_emits_again_loses_nothing():
    sender, receiver = join(0, np.array([4.0])), join(1, np.array([0.0]))
    checkpoint = to_arrays(sender)
    sender, (sent,) = emit(sender, (1,))
    receiver = absorb(receiver, sent)
    restarted = from_arrays(checkpoint)
    restarted, (resent,) = emit(restarted, (1,))
    receiver = absorb(receiver, resent)
    assert receiver.held.z[0] + restarted.held.z[0] == 4.0


def test_a_duplicate_is_dropped():
    _, (message,) = emit(join(0, np.ones(2)), (1,))
    once = absorb(join(1, np.zeros(2)), message)
    assert absorb(once, message) is once


def test_refusals_name_what_is_wrong():
    state = join(1, np.zeros(2))
    with pytest.raises(Misdelivered, match="member 2"):
        absorb(state, TotalMessage(0, 2, RunningTotal(Mass(np.zeros(2), 0.5), 1)))
    with pytest.raises(MassMismatch, match="shape"):
        absorb(state, TotalMessage(0, 1, RunningTotal(Mass(np.zeros(3), 0.5), 1)))
    with pytest.raises(MassMismatch, match="NaN"):
        absorb(state, TotalMessage(0, 1, RunningTotal(Mass(np.array([0.0, np.nan]), 0.5), 1)))
    with pytest.raises(WeightVanished, match="mass was lost"):
        estimate(Mass(np.zeros(2), 0.0))
