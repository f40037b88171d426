import pytest

from parley.benchmarks.serving import SPEC, latency_rows
from parley.spec.parsing import check_spec


def test_latencies_stand_against_the_call_that_looks_a_run_up_and_tails_against_their_own_median():
    rows = latency_rows({"no prediction": [0.001, 0.002, 0.003], "deployed, one row": [0.003, 0.005, 0.009]})
    found = {(row["case"], row["metric"]): row for row in rows}
    row = found["deployed, one row", "latency p50"]
    assert (row["value"], row["unit"], row["baseline"]) == (pytest.approx(5.0), "ms", "GetRun")
    assert row["ratio"] == pytest.approx(2.5)
    assert found["no prediction", "latency p50"]["ratio"] == pytest.approx(1.0)
    tail = found["deployed, one row", "latency p99"]
    assert tail["ratio"] == pytest.approx(tail["value"] / 5.0)


def test_what_is_served_is_a_spec_that_a_coordinator_takes():
    assert not check_spec(SPEC)
