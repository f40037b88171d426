import pytest

from parley.benchmarks.serving import SPEC, Called, caller_rows, latency_rows
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


def test_callers_rows_tell_the_rate_and_whose_processor_time_an_answer_takes():
    called = Called([0.01] * 40, 2.0, {"coordinator": 1.0, "callers": 3.0})
    found = {(row["case"], row["metric"]): row for row in caller_rows("deployed, 32 callers", called)}
    assert found["deployed, 32 callers", "throughput"]["value"] == pytest.approx(20.0)
    assert found["deployed, 32 callers", "throughput"]["ratio"] == pytest.approx(0.01)
    assert found["deployed, 32 callers", "cores in use"]["value"] == pytest.approx(2.0)
    each = found["deployed, 32 callers, callers", "processor time"]
    assert (each["value"], each["ratio"]) == (pytest.approx(75_000.0), pytest.approx(0.75))
