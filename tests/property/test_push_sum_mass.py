"""Held mass plus mass in flight is conserved, whatever the links do."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.numerics.push_sum import absorb, emit, from_arrays, in_flight, join, to_arrays

SIZE = 4
edges = st.tuples(st.integers(0, SIZE - 1), st.sets(st.integers(0, SIZE - 1)))
# A trace: a member emits, some message of the past is delivered (again), or a member restarts from its checkpoint.
events = st.lists(
    st.one_of(
        st.tuples(st.just("emit"), edges),
        st.tuples(st.just("deliver"), st.integers(0, 10_000)),
        st.tuples(st.just("restart"), st.integers(0, SIZE - 1)),
    ),
    max_size=80,
)


@settings(max_examples=200, deadline=None)
@given(events)
def test_held_plus_in_flight_is_conserved_under_any_trace(trace):
    states = [join(i, np.array([float(i + 1), -(2.0**i)])) for i in range(SIZE)]
    start = sum(state.held.z for state in states)
    messages = []
    for kind, detail in trace:
        if kind == "emit":
            sender, receivers = detail
            states[sender], fresh = emit(states[sender], sorted(receivers - {sender}))
            messages += fresh
        elif kind == "deliver" and messages:
            message = messages[detail % len(messages)]
            states[message.receiver] = absorb(states[message.receiver], message)
        elif kind == "restart":
            states[detail] = from_arrays(to_arrays(states[detail]))

    flying = [in_flight(a, b) for a in states for b in states if a is not b]
    z = sum(state.held.z for state in states) + sum(mass.z for mass in flying)
    weight = sum(state.held.weight for state in states) + sum(mass.weight for mass in flying)
    np.testing.assert_allclose(z, start, atol=1e-12)
    np.testing.assert_allclose(weight, SIZE, atol=1e-12)
    assert all(state.held.weight > 0 for state in states)
    assert all(mass.weight >= -1e-15 for mass in flying)
