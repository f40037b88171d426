"""A run that loses a party and then a network ends with the same bits as one that lost nothing."""

import threading
import time

import pytest
import yaml

from tests.e2e.composition import ROOT, Composition

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]
KEY = "/state/label-noise.key"
REQUEST = "the-same-request-in-both-federations"


def spec() -> str:
    """The example with pairwise masks and label privacy, long enough to be disturbed."""
    content = yaml.safe_load((ROOT / "deploy" / "compose" / "specs" / "digits.yaml").read_text())
    content["train"]["upper"]["steps"] = 120
    assert content["privacy"]["aggregation"]["kind"] == "pairwise"
    assert content["privacy"]["labels"]["mechanism"] == "once"
    return yaml.safe_dump(content | {"checkpoint_every": 5, "evaluate_every": 0, "wait_seconds": 120})


def wait_for_step(run, step: int) -> None:
    for event in run.watch():
        if event.step >= step:
            return


def test_a_killed_party_and_a_cut_network_leave_no_trace_in_the_result(engine, tmp_path):
    undisturbed, disturbed = Composition("parley-e2e-undisturbed"), Composition("parley-e2e-disturbed")
    for composition in (undisturbed, disturbed):
        composition.down()
    try:
        undisturbed.up()
        with undisturbed.connect(tmp_path / "undisturbed") as client:
            run = client.start(spec(), REQUEST)
            expected_metrics = run.result()
            expected = undisturbed.model_digests(run.run_id)
            expected_labels = run.predict().labels
        key = undisturbed.compose("exec", "-T", "coordinator", "cat", KEY).stdout
        undisturbed.down()

        # Run ids come from the request's id and label noise from key and run id: both must be the same to compare.
        keep = f"umask 077; cat > {KEY}"
        disturbed.checked("run", "--rm", "-T", "--no-deps", "--entrypoint", "sh", "coordinator", "-c", keep, stdin=key)
        disturbed.up()
        with disturbed.connect(tmp_path / "disturbed") as client:
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
            metrics = run.result()
            assert run.message.attempt >= 3, "both faults must have hit the run"
            assert seen < run.steps
            assert disturbed.model_digests(run.run_id) == expected
            assert metrics["test accuracy"] == expected_metrics["test accuracy"]
            assert run.predict().labels == expected_labels
            ledger = run.ledger()
            assert ledger.broken == ""
            epsilon = yaml.safe_load(spec())["privacy"]["labels"]["epsilon"]
            assert ledger.report.pure_epsilon == pytest.approx(epsilon), "a resumed run pays for its labels once"
    finally:
        for composition in (undisturbed, disturbed):
            composition.down()
    assert undisturbed.leftovers() + disturbed.leftovers() == ""
