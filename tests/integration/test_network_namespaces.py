"""Three parties in network namespaces that nobody can connect into, and that see the coordinator and nothing else."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest

from parley.testing.federations import TwinFederation
from parley.testing.remains import remains_of, start, wait_for_end
from parley.testing.stage import small_policy, write_tables
from tests.contract_suite.built_in import PARTIES
from tests.integration.test_outbound import CASES

PORT, HUB = 7700, "10.231.0.1"
PREFIX = "parley-test-"
LISTENER = f"import socket; s = socket.create_server(('0.0.0.0', {PORT})); print('up', flush=True); s.accept()"
DIAL = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2"),
]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def namespaces():
    """A namespace for the coordinator and one for each party; each party has a link to the coordinator's alone.

    A party's routing lets out what goes to the coordinator's port, and drops the rest: answers to whoever dials it too.
    """
    names = [f"{PREFIX}{name}" for name in ("coordinator", *PARTIES)]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        hub = names[0]
        ip("-n", hub, "address", "add", f"{HUB}/32", "dev", "lo")
        for number, name in enumerate([None, *names[1:]]):  # None is where the test itself runs
            link, here = f"parley-t{number}", ["-n", name] if name else []
            ip(
                "link",
                "add",
                link,
                "netns",
                hub,
                "type",
                "veth",
                "peer",
                "name",
                link,
                *(["netns", name] if name else []),
            )
            ip("-n", hub, "address", "add", f"10.231.{number + 1}.1/30", "dev", link)
            ip("-n", hub, "link", "set", link, "up")
            ip(*here, "address", "add", f"10.231.{number + 1}.2/30", "dev", link)
            ip(*here, "link", "set", link, "up")
            ip(*here, "route", "add", HUB, "via", f"10.231.{number + 1}.1")
            if name:
                only = ["ipproto", "tcp", "dport", str(PORT)]
                ip("-n", name, "rule", "add", "pref", "100", "to", HUB, *only, "lookup", "main")
                ip("-n", name, "rule", "add", "pref", "200", "blackhole")
                ip("-n", name, "rule", "delete", "pref", "32766")
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


class WalledFederation(TwinFederation):
    """A federation whose services run in namespaces of their own."""

    def write(self) -> None:
        super().write()
        self.addresses["coordinator"] = f"{HUB}:{PORT}"
        self.configure("coordinator", listen=f"0.0.0.0:{PORT}")
        for name in PARTIES:
            line = {"name": "coordinator", "address": self.addresses["coordinator"]}
            self.configure(name, connect=self.addresses["coordinator"], coordinator=line)


@pytest.fixture(scope="module")
def federations(tmp_path_factory):
    """One in the open, one behind walls."""
    folder, cases = tmp_path_factory.mktemp("walls"), list(CASES.values())
    tables, labels = write_tables(folder / "data", cases)
    wrappers = {name: ["ip", "netns", "exec", f"{PREFIX}{name}"] for name in ("coordinator", *PARTIES)}
    with contextlib.ExitStack() as stack:
        stack.enter_context(namespaces())
        walled = WalledFederation(
            folder / "w", tables, labels, policy=small_policy(cases), outbound=PARTIES, wrappers=wrappers
        )
        opened = TwinFederation(folder / "o", tables, labels, policy=small_policy(cases))
        for federation in (walled, opened):
            stack.enter_context(federation)
        yield walled, opened


@pytest.mark.parametrize("algorithm", CASES)
def test_parties_behind_walls_train_to_the_same_bits(federations, algorithm):
    left, scores = [], []
    for federation in federations:
        with federation.connect() as client:
            run = wait_for_end(client, start(client, CASES[algorithm].patient_spec, algorithm).run_id)
            assert run.state == "COMPLETED", run.reason
            left.append(remains_of(federation, client, run.run_id))
            if algorithm == "bambi":
                scores.append(run.predict().scores)
    assert left[0] == left[1]
    assert not scores or np.array_equal(*scores)


def test_rows_are_aligned_behind_walls(federations):
    found = []
    for federation in federations:
        with federation.connect() as client:
            found.append(client.align("common", list(PARTIES), "asysqn", "asysqn"))
    assert found[0] == found[1]


def test_the_walls_hold(federations):
    """Nobody connects into a party, neither from the coordinator nor from another party, though something listens."""
    inside = [["ip", "netns", "exec", f"{PREFIX}{name}", sys.executable, "-c"] for name in ("coordinator", *PARTIES)]
    listener = subprocess.Popen([*inside[1], LISTENER], stdout=subprocess.PIPE)
    try:
        assert listener.stdout.readline() == b"up\n"
        for dialling in (inside[0], inside[2]):
            refused = subprocess.run([*dialling, DIAL, "10.231.2.2", str(PORT)], capture_output=True)
            assert refused.returncode != 0
        assert subprocess.run([*inside[1], DIAL, HUB, str(PORT)], capture_output=True).returncode == 0
        with socket.create_connection((HUB, PORT), 5):
            pass
    finally:
        listener.kill()
        listener.wait()
