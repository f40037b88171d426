"""Push-Sum between real party processes over links that lose, repeat and reorder messages.

One gradient step, then many Push-Sum steps: what the parties end with is an average that can be computed by hand.
"""

import time
from collections import Counter

import numpy as np
import pytest
import yaml
from safetensors.numpy import load

from parley.contracts.run.v1 import run_pb2
from parley.numerics.networks import links, out_neighbours
from parley.numerics.push_sum import Mass, estimate, gather, initial_mass, split
from parley.protocols.decentralised.messages import plan_of
from parley.protocols.hgp.settings import HgpSpec
from parley.spec.parsing import parse_spec
from parley.testing.federations import ForkedFederation
from tests.faults.relay import Relay, seeded_fates

pytestmark = pytest.mark.timeout(600)  # thousands of steps between processes
PARTIES = ("north", "east", "south", "west")
ROWS, WIDTH, DECAY = 40, 3, 1e-3
STEPS, LOSSY = 320, 120
"""Push-Sum steps of an average, and after how many of them the loss stops."""


def is_lossy(step):
    return step % STEPS < LOSSY


def records(member):
    draw = np.random.default_rng(member)
    return draw.normal(loc=member, size=(ROWS, WIDTH)), draw.integers(0, 2, size=ROWS)


class LossyFederation(ForkedFederation):
    """A local federation in which everyone dials a party through its relay."""

    relays: dict[str, Relay]

    def write(self):
        super().write()
        fates = seeded_fates(11, is_lossy, lost=0.2, repeated=0.1, overtaken=0.15)
        certificates = self.directory / "certificates"
        self.relays = {name: Relay(name, self.addresses[name], certificates, fates) for name in self.tables}
        path = self.directory / "coordinator.yaml"
        content = yaml.safe_load(path.read_text())
        content["parties"] = {name: {"address": relay.address} for name, relay in self.relays.items()}
        path.write_text(yaml.safe_dump(content))

    def stop(self):
        super().stop()
        for relay in getattr(self, "relays", {}).values():
            relay.close()


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    directory, tables = tmp_path_factory.mktemp("lossy"), {}
    for member, party in enumerate(PARTIES):
        features, labels = records(member)
        path = directory / f"{party}.npz"
        ids, columns = np.array([f"{row:03d}" for row in range(ROWS)]), np.array(["a", "b", "c"])
        np.savez(path, x=features, label=labels, ids=ids, columns=columns)
        tables[party] = {"rows": {"path": str(path), "label": "label", "label_path": str(path)}}
    policy = {"algorithms": ["hgp"], "minimum_evaluation": 1}
    with LossyFederation(tmp_path_factory.mktemp("lossy-federation"), tables, {}, policy=policy) as local:
        yield local


def spec(**changes):
    content = {
        "name": "lossy",
        "seed": 2,
        "dtype": "float64",
        "table": "rows",
        "parties": list(PARTIES),
        "split": {"lower": f"0:{ROWS - 1}", "upper": f"{ROWS - 1}:{ROWS}", "test": 0},
        "train": {
            "algorithm": "hgp",
            "task": {"kind": "personalisation", "method": "sgp", "classes": ["0", "1"], "weight_decay": DECAY},
            "inner": {"steps": 1, "push_steps": STEPS, "learning_rate": 1.0},
            "outer": {"steps": 2},
            **changes.pop("train"),
        },
        "evaluate_every": 0,
        "checkpoint_every": 1,
        **changes,
    }
    return yaml.safe_dump(content)


def gradient(member, x):
    """Of the mean cross-entropy of softmax regression and its weight decay, by hand."""
    features, labels = (part[: ROWS - 1] for part in records(member))
    scores = features @ x[: 2 * WIDTH].reshape(WIDTH, 2) + x[2 * WIDTH :]
    slopes = np.exp(scores - scores.max(axis=1, keepdims=True))
    slopes = slopes / slopes.sum(axis=1, keepdims=True) - np.eye(2)[labels]
    return np.concatenate([(features.T @ slopes).ravel(), slopes.sum(axis=0)]) / len(labels) + DECAY * x


def stepped(x):
    """What each party brings into the next average."""
    return np.stack([x - gradient(member, x) for member in range(len(PARTIES))])


def models(federation, run):
    paths = [federation.directory / "state" / p / "runs" / run.run_id / "model.safetensors" for p in PARTIES]
    return np.stack([load(path.read_bytes())["model"] for path in paths])


def wait_until_seen(federation, step):
    deadline = time.monotonic() + 240
    while max(relay.latest_step for relay in federation.relays.values()) < step:
        assert time.monotonic() < deadline, f"step {step} was not reached"
        time.sleep(0.005)


def test_running_totals_give_the_exact_average_under_loss_repetition_reordering_and_a_restart(federation):
    text = spec(train={"delivery": "robust", "patience_seconds": 0.02, "stretch": 80}, wait_seconds=60)
    with federation.connect() as client:
        run = client.start(text)
        wait_until_seen(federation, STEPS + LOSSY // 2)  # in the lossy part of the second average
        federation.kill("east")
        federation.restart("east")
        run.result()
        assert run.refresh().message.attempt == 2  # the restart interrupted it, and nothing else did
    average = stepped(stepped(np.zeros(2 * WIDTH + 2)).mean(axis=0)).mean(axis=0)
    np.testing.assert_allclose(models(federation, run), np.tile(average, (len(PARTIES), 1)), rtol=0, atol=1e-9)
    counts = sum((relay.counts for relay in federation.relays.values()), start=Counter())
    in_lossy_part = counts["sent"] * LOSSY / STEPS
    assert counts["lost"] > 0.15 * in_lossy_part
    assert counts["repeated"] > 0.07 * in_lossy_part
    assert counts["overtaken"] > 0.1 * in_lossy_part


def test_plain_portions_agree_on_a_wrong_value_on_the_same_trace(federation):
    """The same fates, by the party's own arithmetic; a party itself would wait for what is lost (see below)."""
    plan = plan_of(parse_spec(spec(train={})).settings(HgpSpec).network, PARTIES, 2)
    values = stepped(np.zeros(2 * WIDTH + 2))
    held, late = [initial_mass(value) for value in values], {}
    for step in range(STEPS):
        matrix, arrived, overtaken = links(plan, step), [[] for _ in PARTIES], {}
        for i, sender in enumerate(PARTIES):
            held[i], portions = split(held[i], out_neighbours(matrix, i))
            for j, portion in portions.items():
                fate = federation.relays[PARTIES[j]].fates(sender, PARTIES[j], step)
                copies: list[Mass] = [] if fate.lost else [portion] * (2 if fate.repeated else 1)
                if fate.overtaken:
                    overtaken[i, j] = copies
                else:
                    arrived[j] += copies
        for (_, j), copies in late.items():
            arrived[j] += copies
        held, late = [gather(mass, portions) for mass, portions in zip(held, arrived, strict=True)], overtaken
    agreed = np.stack([estimate(mass) for mass in held])
    assert np.ptp(agreed, axis=0).max() < 1e-9  # consensus …
    assert np.abs(agreed - values.mean(axis=0)).max() > 1e-2  # … on something else


def test_synchronous_delivery_pauses_with_a_reason_instead_of_giving_a_wrong_value(federation):
    text = spec(train={"delivery": "synchronous"}, round_seconds=2)
    with federation.connect() as client:
        run = client.start(text)
        loss = next(event.party for event in run.watch() if event.party.change == run_pb2.RUN_PARTY_CHANGE_LOST)
        assert "took more than 2 s" in loss.detail  # whoever notices first, the coordinator or the party that waits
        run.cancel()
    assert not list((federation.directory / "state").glob(f"*/runs/{run.run_id}/model.safetensors"))
