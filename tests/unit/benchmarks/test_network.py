import socket
import threading
import time

import pytest

from parley.benchmarks.network import BEFORE, BOUND, MODES, NO_LINK, USUAL, Reached, rows_of, spec_of
from parley.benchmarks.shaping_proxy import Link, ShapingProxy
from parley.spec.parsing import check_spec


@pytest.fixture
def echo():
    """The address of a server that sends back what one caller sends."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            caller, _ = server.accept()
            with caller:
                while data := caller.recv(1 << 16):
                    caller.sendall(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(5)


def through(echo, link, sent):
    """What comes back through a link, after how many seconds, and how many bytes were counted."""
    with ShapingProxy(["it"], lambda _: echo, link) as proxy:
        host, _, port = proxy.addresses["it"].rpartition(":")
        with socket.create_connection((host, int(port))) as caller:
            started, back = time.monotonic(), b""
            caller.sendall(sent)
            while len(back) < len(sent):
                back += caller.recv(1 << 16)
            return back, time.monotonic() - started, proxy.counted


def test_an_echo_takes_at_least_a_round_trip(echo):
    back, seconds, counted = through(echo, Link(rtt=80, speed=1000), b"word")
    assert back == b"word"
    assert seconds >= 0.08
    assert counted == 8


def test_an_echo_takes_at_least_what_the_line_carries(echo):
    sent = bytes(range(250)) * 500
    back, seconds, _ = through(echo, Link(rtt=0, speed=10), sent)
    assert back == sent
    assert seconds >= 0.1  # a Mbit at 10 Mbit/s, one way; the other way begins before this one ends


def test_the_bound_is_rounds_times_the_round_trip_and_bytes_over_the_speed():
    assert Link(20, 100).bound(rounds=10, sent_bytes=1_250_000) == pytest.approx(0.2 + 0.1)


def test_seconds_stand_against_the_bound_and_against_what_was_before():
    fast = [Reached(0.6, 0.9, 10, 1_250_000)]
    slow = [Reached(12.0, 13.0, 300, 62_500_000)]
    rows = rows_of({("local", USUAL): fast, (BEFORE, USUAL): slow})
    ratios = {(row["case"], row["baseline"]): row["ratio"] for row in rows if row["baseline"]}
    assert ratios["20 ms, 100 Mbit/s, local", BOUND] == pytest.approx(2.0)
    assert ratios["20 ms, 100 Mbit/s, local", BEFORE] == pytest.approx(0.05)


def test_one_row_for_each_case_is_the_time_to_target_and_stands_against_the_bound():
    measured = [Reached(0.6, 0.9, 10, 1_250_000)]
    found = {(name, link): measured for name in ("local", BEFORE) for link in (NO_LINK, USUAL)}
    rows = [row for row in rows_of(found) if row["metric"] == "time to target"]
    assert [(row["case"], row["baseline"]) for row in rows] == [
        ("no link, local", None),
        ("20 ms, 100 Mbit/s, local", BOUND),
        ("no link, implicit, as it was", None),
        ("20 ms, 100 Mbit/s, implicit, as it was", BOUND),
    ]


@pytest.mark.parametrize("name", MODES)
def test_every_mode_is_a_spec_that_a_coordinator_takes(name):
    check_spec(spec_of(MODES[name]))
