"""The specs of docker-compose.yml on its tables, under its policies, as local processes: no containers needed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from parley.local import LocalFederation

COMPOSE = Path(__file__).parents[2] / "deploy" / "compose"
PARTIES = ("bank", "shop", "telco")

pytestmark = pytest.mark.slow


def configuration(name):
    return yaml.safe_load((COMPOSE / f"{name}.yaml").read_text())


def moved(tables, folder):
    """The tables of a configuration, which has the paths of a container."""
    return {table: fields | {"path": str(folder / Path(fields["path"]).name)} for table, fields in tables.items()}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compose")
    for service in (*PARTIES, "coordinator"):
        (folder / "data" / service).mkdir(parents=True)
    places = {"federation": folder / "data", "tmp": folder, "deploy": COMPOSE}
    script = re.sub(
        r"/(federation|tmp|deploy)(?=/)",
        lambda found: str(places[found[1]]),
        (COMPOSE / "sample_data.sh").read_text(),
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["sh", "-c", script], check=True, env=os.environ | {"PATH": path})
    parties = {name: configuration(name) for name in PARTIES}
    with (
        LocalFederation(
            folder / "federation",
            {name: moved(content["tables"], folder / "data" / name) for name, content in parties.items()},
            moved(configuration("coordinator")["labels"], folder / "data" / "coordinator"),
            policies={name: content["policy"] for name, content in parties.items()},
            outbound=PARTIES,
            ready_seconds=300,
        ) as local,
        local.connect() as connected,
    ):
        yield connected


def trained(client, name):
    text = (COMPOSE / "specs" / f"{name}.yaml").read_text()
    assert client.check(text) == []
    return client.start(text).result()


def test_every_spec_is_tried_here():
    assert {path.stem for path in (COMPOSE / "specs").glob("*.yaml")} == {
        "asysqn", "digits", "digits-two-tree", "fedbio", "hgp", "ldp-dsbo",
    }  # fmt: skip


@pytest.mark.parametrize("spec", ["digits", "digits-two-tree", "asysqn"])
def test_columns_of_three_organisations_are_learned_from_together(client, spec):
    metrics = trained(client, spec)
    assert metrics["test accuracy"] > 0.85


def test_models_pass_between_the_parties_in_hgp(client):
    metrics = trained(client, "hgp")
    assert metrics["test error"] < 0.3
    assert metrics["peer bytes"] > 400_000


def test_noised_vectors_pass_between_the_parties_in_ldp_dsbo(client):
    metrics = trained(client, "ldp-dsbo")
    assert metrics["peer bytes"] > 50_000
    assert metrics["bytes"] - metrics["peer bytes"] < 5_000


def test_only_averages_leave_in_fedbio(client):
    metrics = trained(client, "fedbio")
    assert metrics["validation error"] < 0.3
    assert "peer bytes" not in metrics
