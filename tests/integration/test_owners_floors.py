"""What a curious coordinator or client gets out of honest runs, with the owners' floors and without them.

Two trios hold the same rows. `open_…` have policies that take the floors away, so that each attack is seen to work;
`north`, `south` and `west` have those that a policy has by default, and views.
"""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml

from parley.attacks.sums import (
    LinearRun,
    batch_of_one,
    column_projection,
    columns_of_scales,
    difference_of_grams,
    difference_of_runs,
    limit_bisection,
    solve_gram,
)
from parley.client import RequestRefused
from parley.numerics.participation import participants
from parley.privacy.feature_noise import RowNoise
from parley.privacy.noise import KeyedNoise
from parley.protocols.bambi.columns import completed, reduced
from parley.services.party.row_noise import account_name
from parley.testing.federations import ForkedFederation

ROWS, FEATURES, CLASSES = 60, 5, 4
KEPT, OPEN = ("north", "south", "west"), ("open_north", "open_south", "open_west")
NO_FLOORS = {
    "free_columns": True,
    "differencing": "allow",
    "minimum_parties": 2,
    "minimum_rows": 1,
    "minimum_batch": 1,
    "minimum_evaluation": 1,
    "aggregations": ["pairwise", "plain"],
    "sums_per_row": "unbounded",
}
ALGORITHMS = ["asysqn", "bambi", "explore", "fedbio", "glm", "hgp"]
STEPS, STEP, DECAY = 16, 5.0, 1e-3
NOISED = {"kind": "once", "epsilon": 6.0, "bound": 3.0}
WIDE, NARROW = ["w0", "w1", "w2"], ["w0", "w1"]


def columns_of(party: int) -> np.ndarray:
    return np.random.default_rng(party).standard_normal((ROWS, 3 if party == 2 else 2))


def records_of(party: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(10 + party)
    return generator.standard_normal((ROWS, FEATURES)), generator.integers(0, CLASSES, ROWS)


def write_tables(directory, party: int, more: int = 0) -> dict[str, dict[str, str]]:
    """Columns of everybody's rows (`train`, with some more), and rows of one's own (`records`)."""
    ids = [f"r{i:03d}" for i in range(ROWS)]
    features = {f"{'nsw'[party]}{j}": column for j, column in enumerate(columns_of(party).T)}
    features |= {f"more{j}": column for j, column in enumerate(np.random.default_rng(7).random((more, ROWS)))}
    path = directory / f"columns{party}-{more}.parquet"
    pa.parquet.write_table(pa.table({"id": ids, **features}), path)
    rows, labels = records_of(party)
    own = {"id": ids, **{f"f{j}": column for j, column in enumerate(rows.T)}, "label": labels}
    pa.parquet.write_table(pa.table(own), directory / f"records{party}.parquet")
    tables = {"train": {"path": path}, "again": {"path": path}, "bounded": {"path": copied(path, "bounded")}}
    tables |= {name: {"path": copied(path, name)} for name in ("viewed", "sealed", "rescaled")}
    tables["rescaled"] |= {"preprocess": {"scale": "standard"}}
    for name in ("records", "noised", "spring", "autumn", "checked"):
        tables[name] = {"path": copied(directory / f"records{party}.parquet", name), "label": "label"}
    tables["scaled"] = tables["records"] | {"standardise": True}
    return tables


def copied(path, name: str):
    """A file of its own with the same rows: for the register they are other data."""
    return shutil.copy(path, path.with_name(f"{name}-{path.name}"))


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    directory = tmp_path_factory.mktemp("floors")
    tables = {name: write_tables(directory, m % 3) for m, name in enumerate((*KEPT, *OPEN))}
    tables["north"] = write_tables(directory, 0, more=20)
    tables["strict"] = tables["asking"] = tables["west"]
    labels = np.random.default_rng(3).integers(0, 2, ROWS)
    table = pa.table({"id": [f"r{i:03d}" for i in range(ROWS)], "label": labels})
    pa.parquet.write_table(table, directory / "labels.parquet")
    pa.parquet.write_table(table.append_column("note", pa.array([""] * ROWS)), directory / "shy.parquet")
    (directory / "recording").mkdir()
    views = {table: {"narrow": NARROW, "wide": WIDE} for table in ("train", "again")} | {"viewed": {"last": ["w2"]}}
    exact = dict.fromkeys(ALGORITHMS, sorted({*tables["south"]} - {"sealed"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECORDING", str(directory / "recording"))
        local = ForkedFederation(
            directory,
            tables,
            {
                "train": {"path": directory / "labels.parquet"},
                "shy": {"path": directory / "shy.parquet", "evaluation_epsilon": 1.0},
            },
            policy={
                "algorithms": ALGORITHMS,
                "minimum_parties": 3,
                "differencing": "refuse",
                "coefficients": "columns",
            },
            policies=dict.fromkeys(OPEN, NO_FLOORS)
            | {"west": {"views": views}, "north": {"sums_per_row": "columns"}}
            | {"south": {"sums_per_row": 30, "exact_sums": exact}}
            | {"strict": {"features": {"required": True}}, "asking": NO_FLOORS | {"approval": "required"}},
            modules={"coordinator": "tests.integration.recording_coordinator"},
        )
        with local:
            yield local


@pytest.fixture
def client(federation):
    with federation.connect() as connected:
        yield connected


@pytest.fixture
def seen(federation):
    """What the coordinator has seen since the last call, by kind and in order."""
    directory = federation.directory / "recording"

    def take(kind: str) -> list[np.ndarray]:
        return [np.load(path) for path in sorted(directory.glob(f"*-{kind}.npy"))]

    for old in directory.glob("*.npy"):
        old.unlink()
    return take


def linear(parties, **changes) -> str:
    """Gradient steps on a linear lower level, all rows in every step."""
    content = {
        "name": "linear",
        "dtype": "float64",
        "parties": list(parties),
        "split": {"lower": f"0:{ROWS}", "upper": "lower", "test": 0},
        "train": {
            "algorithm": "bambi",
            "hypergradient": "zeroth_order",
            "model": {"kind": "identity"},
            "intercept": False,
            "regularisation": DECAY,
            "upper": {"steps": 0},
            "lower": {"solver": "sgd", "warmup_steps": STEPS, "optimiser": {"step": STEP}},
        },
        "privacy": {"labels": {"mechanism": "once", "epsilon": 3}},
        **changes,
    }
    return yaml.safe_dump(content)


def averages(parties, batch=32, **changes) -> str:
    """One local step of softmax regression at each party."""
    content = {
        "name": "averages",
        "table": "records",
        "parties": list(parties),
        "train": {
            "algorithm": "fedbio",
            "task": {"kind": "data_cleaning", "classes": [str(c) for c in range(CLASSES)], "checked": 0.4},
            "accelerated": False,
            "rounds": 1,
            "local_steps": 1,
            "gamma": 1.0,
            "batch": batch,
            "checked_batch": batch,
        },
        "evaluate_every": 0,
        **changes,
    }
    return yaml.safe_dump(content)


def choosing(parties, **choice):
    """The same parties, with a choice of columns at the last."""
    return [*parties[:-1], {"name": parties[-1], **choice}]


def watched(client, seen, spec, rows: int = ROWS) -> LinearRun:
    """What the coordinator has after a run: one class less the other, of logits and of θ."""
    sums, thetas = len(seen("sum")), len(seen("theta"))
    client.start(spec).result()
    h = np.stack([total.reshape(-1, rows, 1)[0] for total in seen("sum")[sums:]])
    theta = np.stack([reduced(completed(each[0], 2), 1) for each in seen("theta")[thetas:]])[: len(h) - 1]
    return LinearRun(h, theta, STEP, DECAY)


def test_two_runs_that_differ_by_a_column_give_it_away(client, seen):
    narrow = watched(client, seen, linear(choosing(OPEN, columns=NARROW)))
    wide = watched(client, seen, linear(choosing(OPEN, columns=WIDE)))
    column, secret = difference_of_grams(solve_gram(wide), solve_gram(narrow)), columns_of(2)[:, 2]
    assert abs(np.corrcoef(column, secret)[0, 1]) > 0.999
    assert min(np.abs(column - secret).max(), np.abs(column + secret).max()) < 1e-5


def test_an_owner_lets_no_two_runs_differ_by_a_column(client, seen):
    few = {"train": yaml.safe_load(linear(KEPT))["train"] | {"lower": {"solver": "sgd", "warmup_steps": 2}}}
    with pytest.raises(RequestRefused, match=r"west.*free_columns.*view: narrow"):
        client.start(linear(choosing(KEPT, columns=WIDE), **few))
    with pytest.raises(RequestRefused, match="by `views` alone"):
        client.start(linear(KEPT, **few))
    client.start(linear(choosing(KEPT, view="narrow"), **few)).result()
    with pytest.raises(RequestRefused, match="other columns of the same rows"):
        client.start(linear(choosing(KEPT, view="wide"), **few))
    with pytest.raises(RequestRefused, match="other columns of the same rows"):  # another seed helps nothing
        client.start(linear(choosing(KEPT, view="wide"), seed=8, **few))
    with pytest.raises(RequestRefused, match="other columns of the same rows"):  # nor another name of everybody's file
        client.start(linear(choosing(KEPT, view="wide"), seed=8, table="again", labels="train", **few))
    with pytest.raises(RequestRefused, match=r"north.*other partners over the same rows"):  # another table of west's
        client.start(linear(choosing(KEPT, table="bounded"), **few))
    logistic = {"algorithm": "asysqn", "steps": 2, "batch": 30, "labels_at": "coordinator"}
    for train in ({"algorithm": "glm", "family": "logistic"}, logistic):  # nor another algorithm with linear blocks
        with pytest.raises(RequestRefused, match=r"other columns of the same rows|`sums_per_row` is (30|columns)"):
            client.start(linear(choosing(KEPT, view="wide"), seed=10, train=train))
    assert client.start(linear(choosing(KEPT, view="narrow"), seed=9, **few)).result() is not None


def rescaled(parties, rows: int, **changes) -> str:
    """The same columns, divided by figures of so many training rows."""
    split = {"lower": f"0:{rows}", "upper": "lower", "test": 0}
    return linear(parties, table="rescaled", labels="train", split=split, **changes)


def test_two_runs_that_scale_columns_by_other_rows_give_all_of_them_away(client, seen):
    few, many = (solve_gram(watched(client, seen, rescaled(OPEN, rows), rows=rows)) for rows in (30, ROWS))
    found = columns_of_scales(few, many[:30, :30])
    for column in columns_of(2)[:30].T:
        likeness = [abs(np.corrcoef(column, each)[0, 1]) for each in found.T]
        assert max(likeness) > 0.99


def test_an_owner_who_lets_columns_be_confirmed_lets_none_be_found_by_their_scales(client, seen):
    few = {"train": yaml.safe_load(linear(KEPT))["train"] | {"lower": {"solver": "sgd", "warmup_steps": 2}}}
    client.start(rescaled(KEPT, 30, **few)).result()
    opened = len(seen("sum"))
    with pytest.raises(RequestRefused, match=r"south.*other scales of the same columns.*public `figures`"):
        client.start(rescaled(KEPT, 31, seed=1, **few))
    assert len(seen("sum")) == opened
    client.start(rescaled(KEPT, 30, seed=2, **few)).result()


def test_a_guessed_column_is_confirmed_by_as_many_sums_as_there_are_columns(client, seen):
    run = watched(client, seen, linear(OPEN))
    secret = columns_of(2)[:, 2]
    wrong = secret.copy()
    wrong[0] += 1.0
    assert column_projection(run, secret) < 1e-8
    assert column_projection(run, wrong) > 1e-2


def noised_columns(federation, party: int, width: int) -> np.ndarray:
    """A party's rows under its own noise, as nobody else can compute them."""
    key = (federation.directory / "state" / OPEN[party] / "ldp-noise.key").read_bytes()
    mechanism = RowNoise(NOISED["epsilon"], 1e-6, NOISED["bound"])
    rows, names = columns_of(party)[:, :width], [f"{'nsw'[party]}{j}" for j in range(width)]
    ids = [f"r{i:03d}" for i in range(ROWS)]
    return mechanism.noised(KeyedNoise(key), account_name("train"), ids, names, rows).values


def test_of_noised_rows_the_column_attacks_find_the_noised_column_at_most(client, seen, federation):
    """Rows 1 and 2 of the audit: a guess is confirmed by projection, and two runs are subtracted."""
    privacy = {"features": NOISED}
    runs = {
        2: watched(client, seen, linear(choosing(OPEN, columns=NARROW), privacy=privacy)),
        3: watched(client, seen, linear(choosing(OPEN, columns=WIDE), privacy=privacy)),
    }
    secret, sigma = columns_of(2)[:, 2], RowNoise(NOISED["epsilon"], 1e-6, NOISED["bound"]).sigma(3)
    noised = noised_columns(federation, 2, 3)[:, 2]
    assert column_projection(runs[3], noised) < 1e-6  # it is what the sums are made of, and all that they are
    wrong = secret.copy()
    wrong[0] += 1.0
    true, false = (column_projection(runs[3], guess) for guess in (secret, wrong))
    assert min(true, false) > 0.5
    assert abs(true - false) < 0.1
    column = difference_of_grams(solve_gram(runs[3]), solve_gram(runs[2]))
    found, most = abs(np.corrcoef(column, secret)[0, 1]), 1 / np.sqrt(1 + sigma**2 / 2)  # two draws of each row
    assert found < most + 3 / np.sqrt(ROWS)


def test_of_noised_sums_the_column_attacks_confirm_nothing_and_find_nothing(client, seen, federation):
    """Rows 1 and 2 of the audit again, where noise is in each sum and in each step."""
    bounded = {"kind": "per_sum", "epsilon": 6.0, "bound": 2.0, "step_bound": 2.0, "honest": 2}
    tables = {"table": "bounded", "labels": "train", "privacy": {"features": bounded}}
    trusting = tables | {"privacy": {"features": bounded | {"honest": 3}}}
    with pytest.raises(RequestRefused, match=r"`features.honest`, 2"):
        client.start(linear(OPEN, **trusting))
    runs = {
        2: watched(client, seen, linear(choosing(OPEN, columns=NARROW), **tables)),
        3: watched(client, seen, linear(choosing(OPEN, columns=WIDE), **tables)),
    }
    secret = columns_of(2)[:, 2]
    wrong = secret.copy()
    wrong[0] += 1.0
    true, false = (column_projection(runs[3], guess) for guess in (secret, wrong))
    assert min(true, false) > 0.3
    assert abs(true - false) < 0.1
    column = difference_of_grams(solve_gram(runs[3]), solve_gram(runs[2]))
    assert abs(np.corrcoef(column, secret)[0, 1]) < 4 / np.sqrt(ROWS)
    command = [sys.executable, "-m", "parley", "ledger", "datasets", "--json", "--config"]
    shown = subprocess.run([*command, str(federation.directory / "open_north.yaml")], capture_output=True, check=True)
    found = {each["data set"]: each for each in json.loads(shown.stdout)["datasets"]}["features/bounded"]
    assert (found["records"], found["chain"]) == (ROWS, "whole")
    assert 6 < found["ε spent"] < 10  # two runs
    with pytest.raises(RequestRefused, match=r"BUDGET_EXHAUSTED.*features/bounded"):
        client.start(linear(OPEN, **tables, seed=3)).result()


def test_noised_rows_are_paid_for_once_and_another_epsilon_is_refused_when_the_budget_is_spent(client, federation):
    exact = client.start(linear(OPEN, seed=51))
    exact.result()
    for seed in range(2):
        client.start(linear(OPEN, seed=seed, privacy={"features": NOISED})).result()
    command = [sys.executable, "-m", "parley", "ledger", "datasets", "--json", "--config"]
    config = str(federation.directory / "open_south.yaml")
    shown = json.loads(subprocess.run([*command, config], capture_output=True, check=True).stdout)["datasets"]
    south = {each["data set"]: each for each in shown}["features/train"]
    assert (south["records"], south["chain"]) == (ROWS, "whole")
    assert south["ε spent"] == pytest.approx(NOISED["epsilon"], rel=1e-6)
    assert f"{exact.run_id}/features/train/exact" in south["without noise"]
    with pytest.raises(RequestRefused, match=r"BUDGET_EXHAUSTED.*features/train.*past its budget of 10"):
        client.start(linear(OPEN, privacy={"features": NOISED | {"epsilon": 9.5}}))


def test_an_owner_demands_noise_on_rows(client, seen):
    few = {"train": yaml.safe_load(linear(KEPT))["train"] | {"lower": {"solver": "sgd", "warmup_steps": 2}}}
    parties = [*OPEN[:2], "strict"]
    with pytest.raises(RequestRefused, match=r"strict's policy refuses.*`features.required` is on"):
        client.start(linear(parties, seed=41, **few))
    assert not seen("sum")
    assert client.start(linear(parties, seed=41, privacy={"features": NOISED}, **few)).result() is not None


def test_an_owner_bounds_the_sums_of_a_row(client, seen):
    with pytest.raises(RequestRefused, match=r"needs about.*`sums_per_row` is (30|columns)"):
        client.start(linear(choosing(KEPT, view="narrow"), seed=1))
    assert not seen("sum")


def test_by_default_a_party_gives_fewer_sums_than_tell_its_columns(client, seen):
    """22 columns at north and two values of a row in each sum: eleven sums would do."""

    def steps(count: int) -> str:
        train = yaml.safe_load(linear(KEPT))["train"] | {"lower": {"solver": "sgd", "warmup_steps": count}}
        return linear(choosing(KEPT, view="narrow"), seed=30 + count, train=train)

    with pytest.raises(RequestRefused, match=r"north.*`sums_per_row` is columns, which is 10 here"):
        client.start(steps(6)).result()
    assert not seen("sum")


def test_a_linear_run_warns_of_what_its_sums_tell(client, federation):
    run = client.start(linear(OPEN, seed=21))
    run.result()
    warnings = [event.message for event in run.watch() if "warns" in event.message]
    assert any("confirm a guessed column" in each for each in warnings), warnings


def test_sums_with_and_without_a_party_give_its_addend_away(client, seen):
    client.start(averages(OPEN)).result()
    whole = seen("sum")[0]
    client.start(averages(OPEN[:2])).result()
    rest = [total for total in seen("sum") if total.size == whole.size][-1]
    client.start(averages(OPEN, privacy={"aggregation": {"kind": "plain"}})).result()
    secret = seen("clear-2")[0]
    assert np.abs(difference_of_runs(whole, rest) - secret).max() < 1e-9


def whole(parties, **changes) -> str:
    """All rows in each batch, from a model of zeros: the seed decides nothing."""
    train = yaml.safe_load(averages(parties, batch=ROWS))["train"]
    return averages(parties, train=train | {"task": train["task"] | {"checked": "records"}}, **changes)


def test_another_seed_does_not_keep_whole_batches_from_being_subtracted(client, seen):
    client.start(whole(OPEN, seed=71)).result()
    all_three = seen("sum")[0]
    client.start(whole(OPEN[:2], seed=72)).result()
    rest = [total for total in seen("sum") if total.size == all_three.size][-1]
    client.start(whole(OPEN, seed=73, privacy={"aggregation": {"kind": "plain"}})).result()
    assert np.abs(difference_of_runs(all_three, rest) - seen("clear-2")[0]).max() < 1e-9


def sampling(parties, some: int, **changes) -> str:
    """Rounds of some parties each, whole batches, and steps that are too small to move the model."""
    train = yaml.safe_load(averages(parties, batch=ROWS))["train"]
    few = {"parties_per_round": some, "rounds": 8, "warm_rounds": 0, "gamma": 1e-6, "tau": 1e-6}
    train |= few | {"task": train["task"] | {"checked": "records"}}
    return averages(parties, dtype="float64", train=train, **changes)


def test_rounds_of_other_parties_within_one_run_give_each_ones_addend_away(client, seen):
    client.start(sampling(OPEN, 2, seed=75)).result()
    size = (FEATURES + 1) * CLASSES
    sums = [total[:size] for total in seen("sum") if total.size >= size]
    before, equations, moved = np.zeros(size), [], []
    for k, total in enumerate(sums[:8]):
        equations.append(np.isin(range(3), list(participants(75, k, 3, 2))))
        moved.append((2 * before - total) / 1e-6)
        before = total / 2
    gradients = np.linalg.lstsq(np.array(equations, dtype=float), np.array(moved), rcond=None)[0]
    client.start(whole(OPEN, seed=73, privacy={"aggregation": {"kind": "plain"}})).result()
    assert np.abs(gradients[2] + seen("clear-2")[0][:size]).max() < 1e-4  # whose γ is 1


def test_an_owner_lets_no_party_be_left_out_of_sums_of_the_same_values(client, seen):
    four = [*KEPT, OPEN[0]]
    lossy = {"aggregation": {"recovery": True, "threshold": 3, "minimum_parties": 3}}
    with pytest.raises(RequestRefused, match=r"sums over changing parties.*parties_per_round"):
        client.start(sampling(four, 3, table="spring"))
    with pytest.raises(RequestRefused, match=r"sums over changing parties.*recovery"):
        client.start(whole(four, table="spring", privacy=lossy))
    assert not seen("sum")


def test_averages_over_rows_that_are_noised_once_hold_the_noised_rows(client, seen, federation):
    """Labels beside the rows are not covered, so that such a run stays an exact one."""
    client.start(averages(OPEN, batch=1, table="noised", privacy={"features": NOISED})).result()
    found = batch_of_one(seen("sum")[0], features=FEATURES, classes=CLASSES, weight=0.5)
    for each in (each for each in found if each.count == 1):
        held = [rows[labels == each.label] for rows, labels in map(records_of, range(3))]
        assert min(np.abs(np.concatenate(held) - each.values).max(axis=1)) > 0.5
    command = [sys.executable, "-m", "parley", "ledger", "datasets", "--json", "--config"]
    shown = subprocess.run([*command, str(federation.directory / "open_south.yaml")], capture_output=True, check=True)
    account = {each["data set"]: each for each in json.loads(shown.stdout)["datasets"]}["features/noised"]
    assert account["ε spent"] == pytest.approx(NOISED["epsilon"], rel=1e-6)


def test_averages_with_a_bound_for_each_record_are_paid_for_and_refused_past_the_budget(client, federation):
    train = yaml.safe_load(averages(OPEN))["train"]
    records = {"epsilon": 5, "noise": 4, "honest": 2}
    run = client.start(averages(OPEN, seed=61, train=train | {"rounds": 3, "record_privacy": records}))
    run.result()
    command = [sys.executable, "-m", "parley", "ledger", "datasets", "--json", "--config"]
    shown = subprocess.run([*command, str(federation.directory / "open_west.yaml")], capture_output=True, check=True)
    found = {each["data set"]: each for each in json.loads(shown.stdout)["datasets"]}["features/records"]
    assert (found["records"], found["chain"]) == (ROWS, "whole")
    assert 0 < found["ε spent"] < 5
    greedy = records | {"epsilon": 16, "noise": 0.5}
    with pytest.raises(RequestRefused, match=r"BUDGET_EXHAUSTED"):
        client.start(averages(OPEN, seed=62, train=train | {"rounds": 3, "record_privacy": greedy}))


def test_a_bound_for_each_record_takes_no_figures_that_are_learnt_from_rows(client, seen):
    """A mean moves every row with one record: clipped contributions would differ by more than is noised."""
    train = yaml.safe_load(averages(OPEN))["train"] | {"record_privacy": {"epsilon": 5, "noise": 4, "honest": 2}}
    with pytest.raises(RequestRefused, match="DATA_INVALID"):
        client.start(averages(OPEN, table="scaled", train=train)).result()
    assert not seen("sum")


def test_an_owner_lets_no_two_runs_differ_by_a_party(client, seen, federation):
    four = [*KEPT, OPEN[0]]
    client.start(averages(four)).result()
    refused = pytest.raises(RequestRefused, match=r"other partners over the same rows.*less than half")
    for seed in (0, 5):  # most rows are in every batch, whatever the seed is
        with refused:
            client.start(averages(KEPT, seed=seed))
    with refused:
        client.start(whole(KEPT, seed=6))


def assert_rows_of_parties(found, within):
    """What was recovered of single rows is a row that a party holds, under its label."""
    alone = [each for each in found if each.count == 1]
    assert alone
    for each in alone:
        held = [rows[labels == each.label] for rows, labels in map(records_of, range(3))]
        assert min(np.abs(np.concatenate(held) - each.values).max(axis=1)) < within


def test_a_batch_of_one_is_a_row_with_its_label(client, seen):
    client.start(averages(OPEN, batch=1)).result()
    found = batch_of_one(seen("sum")[0], features=FEATURES, classes=CLASSES, weight=0.5)
    assert_rows_of_parties(found, within=1e-9)


def test_two_runs_whose_rows_differ_by_one_give_it_away(client, seen):
    """One row more is checked at each party, and so is out of the whole batch of training rows."""
    task = yaml.safe_load(averages(OPEN))["train"]["task"]
    moved = {}
    for share in (0.4, 0.42):
        train = yaml.safe_load(averages(OPEN, batch=ROWS))["train"] | {"task": task | {"checked": share}}
        before = len(seen("sum"))
        client.start(averages(OPEN, seed=81, train=train)).result()
        rows = ROWS - round(share * ROWS)
        moved[rows] = rows * seen("sum")[before]
    found = batch_of_one(moved[36] - moved[35], features=FEATURES, classes=CLASSES, weight=0.5)
    assert_rows_of_parties(found, within=1e-6)


def test_an_owner_lets_no_two_runs_differ_by_a_few_rows(client, seen):
    four = [*KEPT, OPEN[0]]
    train = yaml.safe_load(averages(four))["train"]
    client.start(averages(four)).result()
    client.start(averages(four, train=train | {"gamma": 0.5})).result()  # the same rows in every value
    opened = len(seen("sum"))
    changed = {
        "one row less in a batch": {"train": train | {"batch": 31}},
        "one row more that is checked": {"train": train | {"task": train["task"] | {"checked": 0.42}}},
        "another row left out by another seed": {"seed": 9},
        "another table of checked rows": {"train": train | {"task": train["task"] | {"checked": "records"}}},
        "a party less in each round": {"train": train | {"parties_per_round": 3}},
        "a party that the coordinator calls lost": {
            "privacy": {"aggregation": {"recovery": True, "threshold": 3, "minimum_parties": 3}}
        },
    }
    for change in changed.values():
        with pytest.raises(
            RequestRefused, match=r"some of the same rows.*keep rows, batches|sums over changing parties"
        ):
            client.start(averages(four, **change))
    assert len(seen("sum")) == opened


def test_an_owner_lets_no_two_runs_differ_by_a_party_in_what_they_read_beside_their_own_tables(client, seen):
    train = yaml.safe_load(averages(KEPT, batch=ROWS))["train"]
    train["task"]["checked"] = "checked"
    client.start(averages([*KEPT, OPEN[0]], table="spring", train=train)).result()
    opened = len(seen("sum"))
    with pytest.raises(RequestRefused, match="other partners over the same rows"):
        client.start(averages(KEPT, table="autumn", train=train, seed=4))
    assert len(seen("sum")) == opened


def explored(parties, rows: str = "0:30", **changes) -> str:
    content = {
        "name": "explored",
        "parties": list(parties),
        "split": {"lower": rows, "upper": "lower", "test": 0},
        "train": {"algorithm": "explore", **changes},
        "privacy": {"labels": {"mechanism": "off"}},
    }
    return yaml.safe_dump(content)


def test_figures_over_rows_that_differ_by_one_give_it_away(client):
    means = {}
    for last in (30, 31):
        run = client.start(explored(OPEN, f"0:{last}"))
        run.result()
        means[last] = run.coefficients()[OPEN[2]].figures["w2"]["mean"]
    assert abs(31 * means[31] - 30 * means[30] - columns_of(2)[30, 2]) < 0.1


def test_an_owner_lets_figures_be_asked_for_over_one_choice_of_rows_and_bins(client):
    narrow = choosing(KEPT, view="narrow")
    for _ in range(2):
        run = client.start(explored(narrow))
        run.result()
    assert run.coefficients()["west"].figures["w0"]["rows"] == 30
    for change in ({"rows": "0:31"}, {"rows": "1:31"}, {"bins": 9}, {"smallest_cell": 19}):
        with pytest.raises(RequestRefused, match=r"figures over some of the same rows.*same rows, bins and cells"):
            client.start(explored(narrow, **change))


def test_an_owner_asks_for_more_rows_in_a_batch(client, seen):
    with pytest.raises(RequestRefused, match="minimum_batch"):
        client.start(averages(KEPT, batch=1))
    assert not seen("sum")


def test_a_client_cannot_bisect_a_value_by_limits_of_its_choice(client):
    """After one step from zero a single row a adds step/2·a² to its sum; row 8 is where west's is the largest."""
    secret, asked, named = abs(columns_of(2)[8, 2]), [], []
    train = yaml.safe_load(linear(KEPT))["train"]
    train["lower"]["warmup_steps"] = 2

    def exceeds(limit: float) -> bool | None:
        alone = linear(
            choosing(KEPT, columns=["w2"]),
            split={"lower": "8:9", "upper": "lower", "test": 0},
            train=train,
            privacy={"labels": {"mechanism": "off"}, "aggregation": {"limit": limit}},
        )
        asked.append(limit)
        try:
            client.start(alone).result()
        except RequestRefused as refused:
            named.extend(name for name in KEPT if f"{name} refused (RANGE_EXCEEDED)" in str(refused))
            return True if "RANGE_EXCEEDED" in str(refused) else None
        return False

    found = limit_bisection(exceeds, 1e-3, 1e3, 17)
    assert found is None, f"{np.sqrt(2 * found / STEP):.4f} of {secret:.4f} after {len(asked)} runs that named {named}"
    assert len(asked) == 1


def test_a_value_that_does_not_fit_keeps_the_sum_from_opening_and_names_nobody(client, seen, federation):
    train = yaml.safe_load(linear(KEPT))["train"] | {
        "lower": {"solver": "sgd", "warmup_steps": 3, "optimiser": {"step": 1e30}}
    }
    with pytest.raises(RequestRefused) as refused:
        client.start(linear(choosing(KEPT, view="narrow"), seed=31, train=train)).result()
    told = str(refused.value)
    assert "a sum did not open" in told
    assert not [name for name in KEPT if name in told]
    assert "e+" not in told
    logs = [(federation.directory / f"{name}.log").read_text() for name in KEPT]
    assert any("kept from opening" in log for log in logs)


def test_a_prediction_reads_no_table_and_no_columns_that_its_owner_keeps_from_runs(client, seen):
    few = {"train": yaml.safe_load(linear(KEPT))["train"] | {"lower": {"solver": "sgd", "warmup_steps": 2}}}
    run = client.start(linear(choosing(KEPT, view="narrow"), seed=95, **few))
    run.result()
    opened = len(seen("sum"))
    with pytest.raises(RequestRefused, match=r"west.*table viewed is open by `views` alone"):
        run.predict("viewed")
    with pytest.raises(RequestRefused, match=r"south.*`exact_sums` does not let bambi see sums of table sealed"):
        run.predict("sealed")
    assert len(seen("sum")) == opened
    assert len(run.predict("bounded").ids) == ROWS


def test_an_owner_lets_no_metrics_be_taken_over_rows_that_differ_by_one(client):
    """Models that hardly move make the same mistakes, whatever the seeds are: the figures would differ by a label."""

    def judged(rows: str, seed: int) -> str:
        task = {"kind": "personalisation", "classes": [str(c) for c in range(CLASSES)]}
        train = {"algorithm": "hgp", "task": task, "inner": {"steps": 2}, "hyper": {"rounds": 1}, "outer": {"steps": 1}}
        split = {"lower": "0:20", "upper": rows, "test": 0}
        return averages(KEPT, table="autumn", train=train, split=split, seed=seed, evaluate_every=1)

    client.start(judged("20:40", 1)).result()
    with pytest.raises(RequestRefused, match=r"differ from those of run .* by fewer than `minimum_evaluation`, 20"):
        client.start(judged("20:41", 2))
    client.start(judged("40:60", 2)).result()


def test_metrics_leave_with_noise_where_the_labels_owner_says_so(client):
    few = yaml.safe_load(linear(OPEN))["train"] | {"lower": {"solver": "sgd", "warmup_steps": 2}}
    split = {"lower": "0:40", "upper": "lower", "test": "40:60"}
    found = {}
    for labels in ("shy", "train"):
        run = client.start(linear(OPEN, seed=99, labels=labels, train=few, split=split))
        found[labels] = {name: value for name, value in run.result().items() if name.startswith("test ")}
        [counted] = run.ledger().evaluations
        assert counted.HasField("epsilon") == (labels == "shy")
    assert found["shy"].keys() == {"test accuracy"} < found["train"].keys()
    assert found["shy"] != {"test accuracy": found["train"]["test accuracy"]}


def test_a_spec_waits_until_a_person_has_approved_it(client, seen, federation):
    few = {"train": yaml.safe_load(linear(KEPT))["train"] | {"lower": {"solver": "sgd", "warmup_steps": 2}}}
    text = linear([*OPEN[:2], "asking"], seed=97, **few)
    with pytest.raises(RequestRefused, match=r"asking takes a spec only once its owner has approved it") as refused:
        client.start(text)
    assert not seen("sum")
    (digest,) = re.findall(r"parley approve ([0-9a-f]{64})", str(refused.value))
    command = [sys.executable, "-m", "parley", "approve", "--config", str(federation.directory / "asking.yaml")]
    subprocess.run([*command, digest], capture_output=True, check=True)
    client.start(text).result()
    with pytest.raises(RequestRefused, match="has approved it"):
        client.start(linear([*OPEN[:2], "asking"], seed=98, **few))
    subprocess.run([*command, "--revoke", digest], capture_output=True, check=True)
    with pytest.raises(RequestRefused, match="has approved it"):
        client.start(text)


def registered(federation, party: str) -> list[dict]:
    config = str(federation.directory / f"{party}.yaml")
    command = [sys.executable, "-m", "parley", "exposure", "--config", config, "--json"]
    runs: list[dict] = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)["runs"]
    return runs


def test_each_trajectory_of_a_step_is_a_sum_of_every_row_in_the_register(client, seen, federation):
    train = yaml.safe_load(linear(OPEN))["train"] | {
        "upper": {"steps": 1},
        "lower": {"solver": "sgd", "steps": 2, "warmup_steps": 1, "optimiser": {"step": 0.1}},
        "zeroth_order": {"directions": 2, "smoothing": 0.01},
        "model": {"kind": "linear", "out": 2},
    }
    run = client.start(linear(OPEN, seed=91, train=train))
    run.result()
    several = [total.size // ROWS for total in seen("sum") if total.size % ROWS == 0]
    assert max(several) > 1, "more than one trajectory in one message"
    entry = next(each for each in registered(federation, OPEN[1]) if each["run_id"] == run.run_id)
    assert entry["sums"] >= sum(several)


def test_rows_that_are_held_out_count_every_time_they_are_looked_at(client, seen, federation):
    """A quarter of the training rows is in a sum, and every test row in every evaluation and prediction."""
    train = yaml.safe_load(linear(OPEN))["train"] | {
        "upper": {"steps": 6, "batch": 10},
        "lower": {"solver": "sgd", "steps": 1, "warmup_steps": 0, "batch": 10, "optimiser": {"step": 0.1}},
        "hypergradient": "implicit",
        "model": {"kind": "linear", "out": 2},
    }
    split = {"lower": "0:40", "upper": "lower", "test": "40:60"}
    run = client.start(linear(OPEN, seed=92, train=train, split=split, evaluate_every=1))
    run.result()
    looked_at = sum(total.size == 20 for total in seen("sum"))
    assert looked_at >= 6
    (entry,) = (each for each in registered(federation, OPEN[1]) if each["run_id"] == run.run_id)
    assert entry["share"] == 0.25
    trained = sum(total.size != 20 for total in seen("sum")) // 4
    assert entry["sums_per_row"] >= looked_at + trained
    run.predict()
    (after,) = (each for each in registered(federation, OPEN[1]) if each["run_id"] == run.run_id)
    assert after["sums_per_row"] >= entry["sums_per_row"] + 1


def test_the_register_shows_what_left(federation):
    runs = registered(federation, "west")
    assert "narrow" in {entry["view"] for entry in runs}
    counted = [entry for entry in runs if entry["view"] == "narrow" and entry["algorithm"] == "bambi"]
    assert sum(bool(entry["sums"]) for entry in counted) >= 2  # runs that another party refused have none
