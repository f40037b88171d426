"""Every algorithm in containers, by the documented command, and what crossed between whom."""

import json

import pytest

from tests.e2e.composition import PARTIES

pytestmark = pytest.mark.e2e


def traffic(federation, service: str) -> tuple[int, int]:
    """Bytes that a container has received and sent so far, on all its networks."""
    received = sent = 0
    for line in federation.checked("exec", "-T", service, "cat", "/proc/net/dev").splitlines()[2:]:
        name, counts = line.split(":", 1)
        if name.strip() != "lo":
            received, sent = received + int(counts.split()[0]), sent + int(counts.split()[8])
    return received, sent


def trained(federation, spec: str) -> tuple[dict[str, float], int, int]:
    """The metrics of a run, what the coordinator received in it, and what the parties received."""
    before = {service: traffic(federation, service)[0] for service in (*PARTIES, "coordinator")}
    printed = federation.checked("run", "--rm", "-T", "client", "run", "start", f"/specs/{spec}.yaml", "--watch")
    assert "completed" in printed.splitlines()[-1]
    received = {service: traffic(federation, service)[0] - then for service, then in before.items()}
    listed = json.loads(federation.checked("run", "--rm", "-T", "client", "run", "list", "--json"))
    metrics = next(run["metrics"] for run in listed if run["name"] == spec)
    return metrics, received["coordinator"], sum(received[party] for party in PARTIES)


def test_two_trees_carry_the_digits_between_the_parties(federation):
    metrics, at_coordinator, _ = trained(federation, "digits-two-tree")
    assert metrics["test accuracy"] > 0.9
    # Partial sums climb from party to party. These only dial out, so the coordinator's relay carries what it cannot
    # read (tests/integration/test_outbound.py records it there), beside all that the run sends and takes.
    assert at_coordinator > 1.2 * metrics["bytes"]


@pytest.mark.parametrize(("spec", "metric", "least"), [("asysqn", "test accuracy", 0.85), ("hgp", "test error", 0.0)])
def test_what_parties_ask_each_other_is_none_of_the_coordinators_messages(federation, spec, metric, least):
    metrics, *_ = trained(federation, spec)
    assert metrics[metric] >= least
    assert metrics["peer bytes"] > 400_000
    assert metrics["bytes"] - metrics["peer bytes"] < metrics["peer bytes"]


def test_noised_vectors_pass_between_the_parties_alone(federation):
    metrics, _, at_parties = trained(federation, "ldp-dsbo")
    assert metrics["peer bytes"] > 50_000
    assert metrics["bytes"] - metrics["peer bytes"] < 5_000  # what the coordinator sent and took
    assert at_parties > metrics["peer bytes"]


def test_averages_under_masks_pass_through_the_coordinator(federation):
    metrics, at_coordinator, _ = trained(federation, "fedbio")
    assert metrics["validation error"] < 0.3
    assert at_coordinator > 0
    assert "peer bytes" not in metrics
