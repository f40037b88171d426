"""Held mass plus mass in flight is conserved, whatever the links do."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.numerics.push_sum import EdgeTotals, Mass, RunningTotal, absorb, gather, initial_mass, push, split

SIZE = 4
edges = st.tuples(st.integers(0, SIZE - 1), st.sets(st.integers(0, SIZE - 1)))
# A trace: a member pushes, or some total of the past is delivered (again).
events = st.lists(
    st.one_of(
        st.tuples(st.just("push"), edges),
        st.tuples(st.just("deliver"), st.integers(0, 10_000)),
    ),
    max_size=80,
)


def in_flight(sender: int, receiver: int, members: list[EdgeTotals]) -> Mass:
    """What an edge holds: pushed and not yet absorbed."""
    nothing = RunningTotal(Mass(np.zeros(2), 0.0), 0)
    pushed, taken = members[sender].sent.get(receiver, nothing), members[receiver].received.get(sender, nothing)
    return pushed.mass - taken.mass


@settings(max_examples=200, deadline=None)
@given(events)
def test_held_plus_in_flight_is_conserved_under_any_trace(trace):
    masses = [initial_mass(np.array([float(i + 1), -(2.0**i)])) for i in range(SIZE)]
    members = [EdgeTotals() for _ in range(SIZE)]
    start, sent = sum(mass.z for mass in masses), []
    for kind, detail in trace:
        if kind == "push":
            sender, receivers = detail
            masses[sender], portions = split(masses[sender], sorted(receivers - {sender}))
            members[sender], totals = push(members[sender], portions)
            sent += [(sender, receiver, total) for receiver, total in totals.items()]
        elif sent:
            sender, receiver, total = sent[detail % len(sent)]
            members[receiver], news = absorb(members[receiver], sender, total)
            masses[receiver] = gather(masses[receiver], [] if news is None else [news])

    flying = [in_flight(a, b, members) for a in range(SIZE) for b in range(SIZE) if a != b]
    z = sum(mass.z for mass in masses) + sum(mass.z for mass in flying)
    weight = sum(mass.weight for mass in masses) + sum(mass.weight for mass in flying)
    np.testing.assert_allclose(z, start, atol=1e-12)
    np.testing.assert_allclose(weight, SIZE, atol=1e-12)
    assert all(mass.weight > 0 for mass in masses)
    assert all(mass.weight >= -1e-15 for mass in flying)
