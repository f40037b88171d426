"""Many runs over one table of labels: what all of them together say about a label is what one of them says.

The adversary is a party that keeps the noisy targets of every run and takes for each record the class that is likeliest
given all of them. Labels are drawn uniformly, so the best guess that ε leaves is e^ε/(e^ε + C − 1).
"""

import numpy as np
import pytest
import yaml

from parley.attacks.labels import cap, log_likelihoods, margin
from parley.coordinator.labels import LabelAccess, ReleasePlan
from parley.numerics.losses import Softmax
from parley.privacy.dataset_ledger import DatasetTerms
from parley.privacy.label_mechanisms import RandomisedLabels, choose_mechanism
from parley.privacy.ledger import BudgetExhausted, open_ledger
from parley.spec.parsing import parse_spec
from parley.tables.loading import Labels

RECORDS, CLASSES, RUNS = 4000, 10, 200
KEY = bytes(range(32))
TERMS = DatasetTerms()


@pytest.fixture
def ledger(tmp_path):
    book = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    yield book
    book.close()


@pytest.fixture(scope="module")
def labels():
    values = np.random.default_rng(4).integers(0, CLASSES, RECORDS)
    names = np.array([f"person-{number:05}" for number in range(RECORDS)])
    return Labels(names, values, tuple(str(number) for number in range(CLASSES)))


def run_spec(mechanism="once", epsilon=3.0, table="train"):
    content = {
        "name": "target",
        "parties": ["bob", "eve"],
        "table": table,
        "train": {"algorithm": "bambi"},
        "privacy": {"labels": {"mechanism": mechanism, "epsilon": epsilon}},
    }
    return parse_spec(yaml.safe_dump(content))


def targets(ledger, labels, run_id, *, rows=None, releases=1, terms=TERMS, **privacy):
    """What the parties' gradients of a run are made of, release after release."""
    access = LabelAccess(run_spec(**privacy), run_id, lambda *_: labels, ledger, KEY, terms)
    chosen = np.arange(len(labels)) if rows is None else rows
    gate = access.gate(labels, Softmax(CLASSES), ReleasePlan(lambda _: chosen, releases, chosen))
    return [gate.target(release, chosen) for release in range(releases)]


def likeliest(mechanism, seen):
    """The best guess from all noisy targets together; those that repeat an earlier one say nothing new."""
    distinct = {rows.tobytes(): rows for rows in seen}.values()
    scores = sum(log_likelihoods(mechanism, rows) for rows in distinct)
    best = scores >= scores.max(axis=1, keepdims=True) - 1e-9
    return (best * np.random.default_rng(0).random(best.shape)).argmax(axis=1)


def test_two_hundred_runs_say_no_more_than_one_and_the_data_set_has_spent_its_epsilon(ledger, labels):
    mechanism = choose_mechanism("once", CLASSES, 3.0)
    seen = [rows for number in range(RUNS) for rows in targets(ledger, labels, f"run-{number}")]
    right = float((likeliest(mechanism, seen) == labels.values).mean())
    limit = cap(3.0, CLASSES)
    assert right <= limit + margin(limit, RECORDS), f"{right:.3f} of the labels, {limit:.3f} allowed"
    account = ledger.account("train", TERMS)
    assert account.epsilon == pytest.approx(3.0)
    assert sum(account.by_run.values()) == pytest.approx(3.0)
    assert account.by_run["run-0"] == pytest.approx(3.0)
    assert len(account.by_run) == RUNS
    ledger.verify_account("train")


def test_noise_that_is_drawn_anew_for_each_run_is_averaged_away():
    """Why it is not: the attack bites when the two hundred draws are independent."""
    truth = np.random.default_rng(4).integers(0, CLASSES, RECORDS)
    mechanism, rng = RandomisedLabels(3.0, CLASSES), np.random.default_rng(1)
    scores = np.zeros((RECORDS, CLASSES))
    for _ in range(10):
        other = (truth + rng.integers(1, CLASSES, RECORDS)) % CLASSES
        kept = rng.random(RECORDS) < mechanism.transition[0, 0]
        scores += log_likelihoods(mechanism, np.eye(CLASSES)[np.where(kept, truth, other)])
    assert (scores.argmax(axis=1) == truth).mean() > 0.99


def test_other_epsilons_compose_and_the_one_that_passes_the_budget_is_refused_whole(ledger, labels):
    for number, epsilon in enumerate((3.0, 1.0, 5.0)):
        targets(ledger, labels, f"run-{number}", epsilon=epsilon)
    assert ledger.account("train", TERMS).epsilon == pytest.approx(9.0)
    with pytest.raises(BudgetExhausted, match=r"'train' to epsilon .* over all runs, past its budget of 10"):
        targets(ledger, labels, "one too many", epsilon=2.0)
    assert ledger.account("train", TERMS).epsilon == pytest.approx(9.0)
    assert ledger.entries("one too many") == []
    targets(ledger, labels, "the same again", epsilon=5.0)  # drawn before: free


def test_noise_of_every_step_is_charged_to_the_data_set_over_all_runs(ledger, labels):
    per_step = {"mechanism": "per_step", "epsilon": 0.5, "releases": 8}
    targets(ledger, labels, "run-0", **per_step)
    targets(ledger, labels, "run-1", **per_step)
    assert ledger.account("train", TERMS).epsilon == pytest.approx(8.0)
    assert ledger.account("train", TERMS).by_run == pytest.approx({"run-0": 4.0, "run-1": 4.0})
    with pytest.raises(BudgetExhausted, match="over all runs"):
        targets(ledger, labels, "run-2", **per_step | {"releases": 20})
    assert ledger.account("train", TERMS).epsilon <= 10.0


def test_tables_of_other_names_have_accounts_and_noise_of_their_own(ledger, labels):
    one = targets(ledger, labels, "run-0", table="train")[0]
    other = targets(ledger, labels, "run-1", table="spring")[0]
    assert (one != other).any()
    assert ledger.datasets() == ["spring", "train"]
