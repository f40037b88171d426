"""Runs of a spec in one process: every algorithm, resumed, protected, and cut short."""

import asyncio
import math

import numpy as np
import pytest
import yaml

from parley.party.roles import LocalPrivacy
from parley.privacy.noise import KeyedNoise
from parley.simulation.driver import Simulation
from parley.simulation.runs import (
    Holding,
    PredictionUnsupported,
    models_of,
    scratch_ledger,
    simulation_of,
    train_holdings,
    train_tables,
)
from parley.spec.parsing import parse_spec
from parley.tables.errors import RowsDiffer
from parley.tables.loading import Labels, Table

PARTIES = ("bank", "shop", "telco")
ROWS, COLUMNS = 96, 4
DRAWN = np.random.default_rng(8).normal(size=(len(PARTIES), ROWS, COLUMNS))
CLASSES = (DRAWN.sum(axis=(0, 2)) > 0).astype(np.int64)
IDS = np.array([f"{row:03d}" for row in range(ROWS)])

TRAIN = {
    "bambi": {
        "model": {"kind": "mlp", "hidden": [3], "out": 2},
        "upper": {"steps": 5, "batch": 16},
        "lower": {"solver": "newton", "steps": 2, "batch": 32},
        "implicit": {"rounds": 3, "newton_rounds": 3},
        "regularisation": 0.1,
    },
    "fedbio": {
        "rounds": 5,
        "batch": 16,
        "checked_batch": 8,
        "task": {"kind": "data_cleaning", "classes": ["0", "1"], "checked": 0.25},
    },
    "hgp": {
        "task": {"kind": "regularisation", "classes": ["0", "1"]},
        "inner": {"steps": 12, "learning_rate": 0.2},
        "hyper": {"rounds": 4, "push_steps": 2, "step_size": 0.1},
        "outer": {"steps": 3},
        "stretch": 5,
    },
    "ldp_dsbo": {
        "classes": ["0", "1"],
        "epsilon": 90,
        "iterations": 6,
        "batch": 4,
        "weight": 0.3,
        "noise": {"sigma": 20.0},
        "stretch": 2,
    },
}


def spec_of(algorithm, kind="pairwise", **changes):
    """A short run; every iteration or every other one is a checkpoint."""
    content = {
        "name": "one-process",
        "seed": 5,
        "dtype": "float64",
        "parties": list(PARTIES),
        "split": {"lower": 0.5, "upper": 0.5 if algorithm == "ldp_dsbo" else 0.25, "test": 0},
        "train": {"algorithm": algorithm, **TRAIN[algorithm]},
        "privacy": {"aggregation": {"kind": kind}},
        "evaluate_every": 2,
        "checkpoint_every": 1 if algorithm == "hgp" else 2,
    }
    if algorithm == "bambi":
        content["privacy"]["labels"] = {"mechanism": "per_step", "epsilon": 5.0}
    return parse_spec(yaml.safe_dump(content | changes))


class OwnLabels:
    """A party's tables in memory: there is one, and it has labels."""

    def labels(self, name, classes=None, kind="classes"):
        return labels_of()

    def load_like(self, name, other):
        raise AssertionError("these runs read one table")


def table_of(index):
    return Table(IDS, DRAWN[index], [f"c{column}" for column in range(COLUMNS)], PARTIES[index])


def labels_of(*_):
    return Labels(IDS, CLASSES, ("0", "1"))


def holdings():
    """The same keys each time, so that noise is the same."""
    return [
        Holding(
            table_of(index),
            OwnLabels(),
            lambda index=index: LocalPrivacy(scratch_ledger(), KeyedNoise(bytes([index]) * 32), math.inf),
        )
        for index in range(len(PARTIES))
    ]


def simulation(spec, **options) -> Simulation:
    return simulation_of(spec, holdings(), labels_of, run_id="run-1", noise_key=b"k" * 32, **options)


def bits(run, outcome):
    return [{name: tensor.numpy().tobytes() for name, tensor in model.items()} for model in models_of(run, outcome)]


@pytest.mark.parametrize("algorithm", TRAIN)
def test_a_run_resumed_from_any_checkpoint_ends_with_the_same_bits(algorithm):
    spec = spec_of(algorithm)
    whole = simulation(spec)
    outcome = whole.run()
    assert len(outcome.checkpoints) >= 2
    for saved in outcome.checkpoints.values():
        again = simulation(spec)
        assert bits(again, again.run(resume=saved)) == bits(whole, outcome)


@pytest.mark.parametrize("algorithm", ["bambi", "fedbio"])
@pytest.mark.parametrize("kind", ["pairwise", "two_tree"])
def test_under_the_specs_protection_a_run_is_the_same_to_the_rings_precision(algorithm, kind):
    spec = spec_of(algorithm, kind)
    clear, hidden = simulation(spec), simulation(spec, sums="protected")
    for plain, masked in zip(models_of(clear, clear.run()), models_of(hidden, hidden.run()), strict=True):
        for name, tensor in plain.items():
            np.testing.assert_allclose(masked[name].numpy(), tensor.numpy(), rtol=0, atol=1e-4)


def test_a_run_ends_early_with_a_model_where_its_watcher_has_seen_enough():
    run = simulation(spec_of("fedbio"))
    outcome = run.run(until=lambda report: report.k == 2)
    assert [report.k for report in outcome.reports] == [1, 2]
    first, *others = models_of(run, outcome)
    for other in others:  # everybody took over the last average
        assert other["layers.0.weight"].numpy().tobytes() == first["layers.0.weight"].numpy().tobytes()


async def test_a_run_can_be_made_where_an_event_loop_is_running_already():
    asyncio.get_running_loop()
    spec = spec_of("hgp")
    inside, beside = simulation(spec), simulation(spec)
    assert bits(inside, inside.run()) == bits(beside, await beside.drive())


def test_rows_that_are_not_those_of_the_labels_are_refused():
    tables = [table_of(index) for index in range(len(PARTIES))]
    other = Table(np.char.add("x", IDS), DRAWN[2], tables[2].columns, "telco")
    with pytest.raises(RowsDiffer, match="telco"):
        train_tables(spec_of("bambi"), [*tables[:2], other], labels_of())


def test_only_runs_whose_model_is_spread_over_the_parties_predict_together():
    run = train_tables(spec_of("bambi"), [table_of(index) for index in range(len(PARTIES))], labels_of())
    assert run.predict([table_of(index) for index in range(len(PARTIES))]).shape == (ROWS, 2)


def test_where_every_party_has_the_whole_model_there_is_nothing_to_predict_together():
    run = train_holdings(spec_of("fedbio"), holdings(), labels_of)
    assert run.metrics["validation error"] <= 1
    with pytest.raises(PredictionUnsupported, match="fedbio"):
        run.predict([table_of(index) for index in range(len(PARTIES))])


STOPS = {"bambi": {"validation": 0.25}, "fedbio": {}, "hgp": {}}


@pytest.mark.parametrize("algorithm", STOPS)
def test_a_run_that_stops_early_keeps_the_model_of_its_best_evaluation(algorithm):
    """Here the best is the one with the largest loss, so that stopping has something to go back to."""
    split = {"lower": 0.5, "upper": 0.25, "test": 0} | STOPS[algorithm]
    changes = {"split": split, "evaluate_every": 1, "checkpoint_every": 1}
    if algorithm == "fedbio":  # a round ends with the average at the parties where momenta follow it
        changes["train"] = {"algorithm": algorithm, **TRAIN[algorithm], "warm_rounds": 0}
    plain = simulation(spec_of(algorithm, **changes))
    reports: dict[int, dict] = {}
    for report in plain.run().reports:
        reports.setdefault(report.k, {}).update(report.metrics)
    worst = max((k for k in reports if k < max(reports)), key=lambda k: reports[k]["validation loss"])
    stop = {"metric": "validation loss", "patience": 1000, "best": "largest"}
    chosen = simulation(spec_of(algorithm, **changes, stop=stop))
    outcome = chosen.run()
    assert outcome.kept is not None
    assert outcome.kept.k == worst
    assert outcome.metrics["validation loss"] == reports[worst]["validation loss"]
    saved = plain.begin(outcome.checkpoints[worst])
    as_measured = [role.model_tensors(state) for role, state in zip(plain.roles, saved, strict=True)]
    assert bits(chosen, outcome) == [
        {name: tensor.numpy().tobytes() for name, tensor in model.items()} for model in as_measured
    ]
