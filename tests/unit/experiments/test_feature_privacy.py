"""The table of utility against ε: every organisation's rows are noised, and noise costs what it must."""

import numpy as np
import pytest

from parley.datasets import Dataset
from parley.experiments import feature_privacy
from parley.experiments.feature_privacy import CREDIT_FIGURES, Subject, figures, plot, run, subjects


@pytest.fixture
def subject():
    """Columns of which each organisation's first tells the class."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, 300)
    values = draw.uniform(-0.3, 0.3, (300, 6))
    values[:, [0, 2, 4]] += 0.5 * labels[:, None]
    names = [f"c{place}" for place in range(6)]
    data = Dataset("made", np.array([str(row) for row in range(300)]), values, names, labels)
    return Subject("made", data, dict.fromkeys(names, (0.0, 1.0)), 1.0, "logistic")


def test_what_is_learnt_without_noise_is_lost_under_much_of_it(subject):
    clear, noisy = figures(subject, None), figures(subject, 0.5)
    assert clear["accuracy"] > 0.9 > 0.7 > noisy["accuracy"]
    assert noisy["AUC"] < 0.7 < clear["AUC"]


def test_the_table_has_every_epsilon_and_what_nothing_learnt_gets(subject, monkeypatch, tmp_path):
    monkeypatch.setattr(feature_privacy, "subjects", lambda *_: [subject])
    rows = run(True)
    cases = {row["case"] for row in rows if row["metric"] == "accuracy"}
    settings = {f"made {kind} {noise}" for kind in ("once", "per_sum") for noise in ("no noise", "eps=4", "eps=12")}
    assert cases == settings | {"made most frequent class"}
    attacked = {row["case"]: row["ours"] for row in rows if row["metric"] == "recovered"}
    assert attacked["column attack no noise"] > 0.98
    assert attacked["column attack eps=4"] < 0.75
    assert attacked.keys() >= {"column attack eps=12", "column attack on two runs eps=4"}
    assert max(row["ours"] for row in rows if row["metric"] == "excess over bound") <= 0
    plot(rows, tmp_path / "rows.png")
    assert (tmp_path / "rows.png").stat().st_size > 1000


def test_the_credit_file_is_looked_for_where_data_lies(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"uci_credit_card\.csv"):
        subjects(False, tmp_path)
    assert [each.name for each in subjects(True, tmp_path)] == ["digits"]
    header = ",".join(["ID", *CREDIT_FIGURES, "default.payment.next.month"])
    line = ",".join(["1", *["2"] * len(CREDIT_FIGURES)])
    (tmp_path / "uci_credit_card.csv").write_text(f"{header}\n{line},0\n{line.replace('1', '3', 1)},1\n")
    credit, digits = subjects(False, tmp_path)
    assert [each.name for each in subjects(True, tmp_path)] == ["credit", "digits"]
    assert (len(credit.data.columns), credit.data.labels.tolist(), digits.name) == (23, [0, 1], "digits")
