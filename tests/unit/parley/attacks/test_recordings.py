"""Runs that were recorded are attacked from their files."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from parley.attacks.columns import sums_over_rows
from parley.attacks.recordings import RecordingUnusable, attack_recording, save
from parley.attacks.stand_in import stand_in
from parley.attacks.tapes import rehearse
from parley.cli import app
from parley.privacy.label_mechanisms import RandomisedLabels
from parley.spec.parsing import parse_spec
from tests.unit.parley.attacks.test_suite import linear

ROWS, CLASSES = 4000, 4


def noisy_rows(truth, epsilon, seed):
    """Randomised response with the mechanism's own probabilities, drawn apart from the product."""
    transition = RandomisedLabels(epsilon, CLASSES).transition
    draw = np.random.default_rng(seed)
    return np.eye(CLASSES)[[draw.choice(CLASSES, p=transition[label] / transition[label].sum()) for label in truth]]


def test_the_sums_of_a_rehearsal_confirm_a_column_from_their_files(tmp_path):
    subject = stand_in(parse_spec(linear()), tmp_path / "tables", 400)
    rows, sums = sums_over_rows(subject, rehearse(subject))
    columns = {f"c{number}": column for number, column in enumerate(subject.features["c"][rows].T)}
    save(tmp_path / "recording", linear(), sums={"all": sums}, columns=columns)
    told = tmp_path / "found.json"
    assert CliRunner().invoke(app, ["attack", str(tmp_path / "recording"), "--json", str(told)]).exit_code == 0
    rows = json.loads(told.read_text())["rows"]
    assert {row["case"] for row in rows} == {"column confirmed by projection × recording"}
    assert rows[0]["ours"] > 0.9


def test_labels_are_within_the_cap_for_one_draw_and_beyond_it_for_many(tmp_path):
    truth = np.random.default_rng(1).integers(0, CLASSES, ROWS)
    one = noisy_rows(truth, 1.0, 0)
    save(tmp_path / "one", linear(), noisy={"a": one, "b": one}, labels={"labels": truth})
    (finding,) = attack_recording(tmp_path / "one")
    assert finding.verdict == "within"
    draws = {f"{seed:02}": noisy_rows(truth, 1.0, seed) for seed in range(10)}
    save(tmp_path / "many", linear(), noisy=draws, labels={"labels": truth})
    (finding,) = attack_recording(tmp_path / "many")
    assert finding.verdict == "beyond"
    assert CliRunner().invoke(app, ["attack", str(tmp_path / "many")]).exit_code == 1


def test_a_folder_without_a_recording_and_parts_of_other_rows_are_refused(tmp_path):
    with pytest.raises(RecordingUnusable, match="holds no recording"):
        list(attack_recording(tmp_path))
    save(tmp_path, linear(), sums={"all": np.zeros((5, 2))}, columns={"a": np.zeros(4)})
    with pytest.raises(RecordingUnusable, match="different numbers of rows"):
        list(attack_recording(tmp_path))
