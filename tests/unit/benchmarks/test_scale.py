import pytest

from parley.benchmarks.scale import Axis, Cost, axes, axis_rows, exponent, memory_rows
from parley.spec.parsing import parse_spec


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_its_power(power):
    assert exponent({size: 3.0 * size**power for size in (1, 4, 16, 64)}) == pytest.approx(power)


def test_a_fixed_cost_hides_growth_over_all_points_but_not_at_the_large_end():
    axis = Axis("rows", (1, 10, 1000, 10_000), lambda _: "")
    costs = {value: Cost([50.0 + value], [50.0 + value]) for value in axis.values}
    found = {row["metric"]: row["value"] for row in axis_rows(axis, costs)}
    assert found["exponent of step"] < 0.8
    assert found["exponent of step at the large end"] == pytest.approx(1.0, abs=0.03)


def test_every_point_of_every_axis_is_a_spec_that_a_coordinator_accepts():
    for axis in axes():
        for value in axis.values:
            assert parse_spec(axis.spec(value)).parties


def test_memory_growth_is_told_for_ten_thousand_steps():
    rows = memory_rows({"party": {100: 200.0, 200: 201.0}})
    assert rows[-1]["value"] == pytest.approx(100.0)
