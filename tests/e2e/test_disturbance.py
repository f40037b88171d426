"""A run ends with the same bits as one left alone: after a kill, after a cut network, through a rolling upgrade."""

import os
import threading
import time
from dataclasses import dataclass

import pytest
import yaml

from parley.client import ENDED
from parley.testing.remains import patiently
from tests.e2e.composition import PARTIES, ROOT, TAG, Composition, output

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]
KEY = "/state/label-noise.key"
REQUEST = "the-same-request-in-both-federations"


def spec() -> str:
    """The example with pairwise masks and label privacy, long enough to be disturbed."""
    content = yaml.safe_load((ROOT / "deploy" / "compose" / "specs" / "digits.yaml").read_text())
    content["train"]["upper"]["steps"] = 300
    assert content["privacy"]["aggregation"]["kind"] == "pairwise"
    assert content["privacy"]["labels"]["mechanism"] == "once"
    return yaml.safe_dump(content | {"checkpoint_every": 5, "evaluate_every": 0, "wait_seconds": 120})


def wait_for_step(run, step: int) -> None:
    while patiently(run.refresh).step < step:  # the coordinator may just have been replaced
        assert run.state not in ENDED, f"{run.state} at step {run.step}: {run.reason}"
        time.sleep(0.05)


@dataclass(frozen=True)
class Ended:
    """What a run has led to."""

    digests: list[str]
    accuracy: float
    labels: list[str]

    @classmethod
    def of(cls, composition: Composition, run) -> "Ended":
        metrics = run.result()
        ledger = run.ledger()
        assert ledger.broken == ""
        epsilon = yaml.safe_load(spec())["privacy"]["labels"]["epsilon"]
        assert ledger.report.pure_epsilon == pytest.approx(epsilon), "a resumed run pays for its labels once"
        return cls(composition.model_digests(run.run_id), metrics["test accuracy"], list(run.predict().labels))


@pytest.fixture(scope="module")
def undisturbed(engine, tmp_path_factory):
    """How the run ends if nothing happens, and the key of its label noise."""
    made = Composition("parley-e2e-undisturbed")
    made.down()
    try:
        made.up()
        with made.connect(tmp_path_factory.mktemp("undisturbed")) as client:
            ended = Ended.of(made, client.start(spec(), REQUEST))
        return ended, made.compose("exec", "-T", "coordinator", "cat", KEY).stdout
    finally:
        made.down()
        assert made.leftovers() == ""


@pytest.fixture
def disturbed(undisturbed):
    """A federation for the same run: its id comes from the request's id, the noise of labels from key and run id."""
    made = Composition("parley-e2e-disturbed")
    made.down()
    try:
        yield made
    finally:
        made.down()
        assert made.leftovers() == ""


def up(composition: Composition, key: bytes) -> None:
    keep = f"umask 077; cat > {KEY}"
    composition.checked("run", "--rm", "-T", "--no-deps", "--entrypoint", "sh", "coordinator", "-c", keep, stdin=key)
    composition.up()


def test_a_killed_party_and_a_cut_network_leave_no_trace_in_the_result(undisturbed, disturbed, tmp_path):
    expected, key = undisturbed
    up(disturbed, key)
    with disturbed.connect(tmp_path) as client:
        run = client.start(spec(), REQUEST)
        wait_for_step(run, 20)
        disturbed.kill("shop")
        disturbed.start("shop")
        wait_for_step(run, 60)
        cut = threading.Thread(target=disturbed.cut_network, args=("telco", 20))
        cut.start()
        time.sleep(1)
        seen = run.refresh().step
        cut.join()
        assert Ended.of(disturbed, run) == expected
        assert run.message.attempt >= 3, "both faults must have hit the run"
        assert seen < run.steps


@pytest.fixture
def other_tag():
    """Images of another tag: those of PARLEY_PREVIOUS_TAG, the version before, or these ones under a second name."""
    if previous := os.environ.get("PARLEY_PREVIOUS_TAG"):
        yield previous
        return
    images = {f"parley/{role}:{TAG}": f"parley/{role}:{TAG}-before" for role in ("party", "coordinator")}
    for image, name in images.items():
        output("docker", "tag", image, name)
    yield f"{TAG}-before"
    output("docker", "rmi", *images.values())


def test_a_rolling_upgrade_leaves_no_trace_in_the_result(undisturbed, disturbed, other_tag, tmp_path):
    """Every container is replaced by one of the next tag while a run goes on: the coordinator, then the parties."""
    expected, key = undisturbed
    disturbed.tag = other_tag
    up(disturbed, key)
    with disturbed.connect(tmp_path) as client:
        run = client.start(spec(), REQUEST)
        for step, service in zip((20, 50, 80, 110), ("coordinator", *PARTIES), strict=True):
            wait_for_step(run, step)
            disturbed.replace(service, TAG)
        assert Ended.of(disturbed, run) == expected
        assert run.message.attempt >= 3, "replacements must have hit the run; two at once are one interruption"
        images = {disturbed.inspect(service)["Config"]["Image"].rpartition(":")[2] for service in PARTIES}
        assert images == {TAG}
