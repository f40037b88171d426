"""What deploy/ ships as configuration is read by the services, and its parties need no port."""

from pathlib import Path

import pytest
import yaml

from parley.services.coordinator.config import CoordinatorConfig
from parley.services.party.config import PartyConfig
from parley.services.wire.configuration import load_config

ROOT = Path(__file__).parents[3]
COMPOSED = ("bank", "shop", "telco")


@pytest.mark.parametrize("file", [*(f"deploy/compose/{name}.yaml" for name in COMPOSED), "deploy/party/party.yaml"])
def test_parties_dial_out(file):
    config = load_config(ROOT / file, PartyConfig)
    assert config.connect is not None
    assert config.connect.endswith(":7700")


def test_the_composed_coordinator_expects_them_to():
    config = load_config(ROOT / "deploy" / "compose" / "coordinator.yaml", CoordinatorConfig)
    assert {name: party.connects for name, party in config.parties.items()} == dict.fromkeys(COMPOSED, True)


def test_no_party_publishes_a_port():
    composed = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    template = yaml.safe_load((ROOT / "deploy" / "party" / "docker-compose.yml").read_text())["services"]
    for party in (*(composed[name] for name in COMPOSED), template["party"]):
        assert "ports" not in party
