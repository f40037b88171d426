import socket
import threading

import pytest

from parley.benchmarking import offered
from parley.benchmarks.counting_proxy import CountingProxy
from parley.benchmarks.wire import ECHOES, OURS, Case, Timings, byte_rows, cases, speed_rows
from parley.spec.parsing import parse_spec


def test_every_case_is_a_spec_that_a_coordinator_accepts():
    from parley.benchmarks.wire import _spec

    for case in cases([1, 2, 4]):
        assert len(parse_spec(_spec(case, 5)).parties) == case.parties


def test_a_secure_sum_is_not_asked_of_too_few_parties():
    assert {case.protection for case in cases([1])} == {"plain"}
    assert "two_tree" not in {case.protection for case in cases([2])}


def test_speed_is_compared_within_a_round_and_the_median_over_rounds_is_told():
    figures = {name: Timings([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]) for name in ECHOES}
    figures[OURS] = Timings([2.0, 4.0, 100.0], [3.0, 3.0, 3.0])
    rows = speed_rows(Case(4, 0, "plain"), figures)
    speed = next(row for row in rows if row["metric"] == "steps")
    cost = next(row for row in rows if row["metric"] == "processor time of a step")
    assert (speed["value"], speed["ratio"]) == (0.25, 0.25)
    assert cost["ratio"] == 3.0


@pytest.mark.parametrize(("protection", "tensors"), [("plain", 2), ("pairwise", 3), ("two_tree", 5)])
def test_the_payload_of_a_step_is_that_of_the_tensors_which_cross(protection, tensors):
    payload = 4 * tensors * 256 * 10 * 4
    assert byte_rows(Case(4, 0, protection), payload)[0]["ratio"] == 1.0


def test_a_counting_proxy_hands_on_and_counts_both_ways():
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(connection.recv(5) + b"!!")

    threading.Thread(target=answer, daemon=True).start()
    target = f"127.0.0.1:{server.getsockname()[1]}"
    with CountingProxy(["party"], lambda _: target) as proxy:
        host, _, port = proxy.addresses["party"].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(b"hello")
            assert client.makefile("rb").read(7) == b"hello!!"
        assert proxy.counted == 12


def test_benchmarks_appear_in_the_command_by_being_there():
    assert "wire" in offered()
    assert "echo" not in offered()
