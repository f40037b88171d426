"""One federation of real processes for all integration tests: a coordinator and four parties over mutual TLS."""

from pathlib import Path

import pytest

from parley.local import _free_ports
from parley.services.coordinator.config import ALL_PERMISSIONS
from parley.splitting import split_dataset
from parley.testing.federations import ForkedFederation

PARTIES = ("bank", "shop", "telco", "grocer")


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """Tables of every party: digits and breast cancer, and a digits table that lacks rows at one party."""
    directory = tmp_path_factory.mktemp("data")
    split_dataset("digits", PARTIES, directory / "digits")
    split_dataset("breast_cancer", PARTIES, directory / "cancer", standardise=True)
    split_dataset("digits", PARTIES, directory / "few", limit=100)
    split_dataset("digits", PARTIES, directory / "other", limit=100, seed=9)
    write_long_ids(directory / "long")
    broken = directory / "broken.csv"
    broken.write_text("id,a,b\n1,0.5,not-a-number-4711\n2,1,2\n")
    return directory


def write_long_ids(folder: Path) -> None:
    """Rows that no message can name together: long ids are as heavy as many ids, and quicker."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    rows = 24_000
    ids = [f"{'customer-of-the-northern-branch-' * 6}{row:07d}" for row in range(rows)]
    drawn = np.random.default_rng(3).normal(size=(rows, len(PARTIES)))
    for party, column in zip(PARTIES, drawn.T, strict=True):
        pq.write_table(pa.table({"id": ids, "value": column}), folder / f"{party}.parquet")
    labels = (drawn.sum(axis=1) > 0).astype(int)
    pq.write_table(pa.table({"id": ids, "label": labels}), folder / "labels.parquet")


def tables_of(data: Path, party: str) -> dict[str, dict[str, str]]:
    """A party's tables; `uneven` and `unlike` do not fit together across parties."""
    found = {name: {"path": str(data / name / f"{party}.parquet")} for name in ("digits", "cancer", "few", "long")}
    found["uneven"] = found["few"] if party == "shop" else found["digits"]
    found["unlike"] = {"path": str(data / ("other" if party == "shop" else "few") / f"{party}.parquet")}
    found["broken"] = {"path": str(data / "broken.csv")}
    found["absent"] = {"path": str(data / "nowhere.parquet")}
    return found


def clients_of_tests() -> dict[str, list[str]]:
    """One client that may do everything, and for each permission one that lacks it alone."""
    lacking = {f"without-{one}": [each for each in ALL_PERMISSIONS if each != one] for one in ALL_PERMISSIONS}
    return {"client": list(ALL_PERMISSIONS), "revoked": list(ALL_PERMISSIONS), **lacking}


def web_of_tests(directory: Path) -> dict:
    """A page with a provider, which need not run before somebody logs in by it."""
    (port,) = _free_ports(1)
    (directory / "provider.secret").write_text("secret of the page at its provider\n")
    provider = {
        "issuer": f"http://127.0.0.1:{port}",
        "client_id": "parley-page",
        "client_secret_file": str(directory / "provider.secret"),
        "users": {"auditor@example.org": ["watch", "ledger"]},
        "groups": {"everything": list(ALL_PERMISSIONS)},
    }
    return {"listen": "127.0.0.1:0", "provider": provider}


@pytest.fixture(scope="session")
def federation(data, tmp_path_factory):
    """The running federation. Tests may kill and restart its processes, and leave it whole."""
    many = {"epsilon": 1e5}  # of all tests together
    labels = {
        name: {"path": str(data / name / "labels.parquet"), "budget": many}
        for name in ("digits", "cancer", "few", "long")
    }
    labels |= dict.fromkeys(("uneven", "broken", "absent"), labels["digits"]) | {"unlike": labels["few"]}
    directory = tmp_path_factory.mktemp("federation")
    local = ForkedFederation(
        directory,
        {party: tables_of(data, party) for party in PARTIES},
        labels,
        policy={
            "tables": ["digits", "cancer", "few", "long", "uneven", "unlike", "broken", "absent"],
            "predictions": {"rows_per_day": 100_000},
            "free_columns": True,
        },
        coordinator_options={"clients": clients_of_tests(), "web": web_of_tests(directory)},
    )
    with local:
        yield local


@pytest.fixture
def client(federation):
    with federation.connect() as connected:
        yield connected


def spec(**changes) -> str:
    """A small run on digits as YAML; `changes` are dotted paths with `__` for dots."""
    import yaml

    content = {
        "name": "small",
        "seed": 3,
        "table": "digits",
        "parties": ["bank", "shop", "telco"],
        "train": {
            "algorithm": "bambi",
            "regularisation": 0.001,
            "model": {"kind": "mlp", "hidden": [16], "out": 8},
            "upper": {"steps": 6, "batch": 128, "optimiser": {"kind": "adam", "step": 0.01}},
            "lower": {"steps": 1, "batch": 256},
            "implicit": {"rounds": 3, "newton_rounds": 3},
        },
        "privacy": {"labels": {"mechanism": "once", "epsilon": 5}},
        "evaluate_every": 2,
        "checkpoint_every": 2,
        "wait_seconds": 60,
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        section = content
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return yaml.safe_dump(content)
