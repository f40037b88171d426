"""A federation is upgraded one service after the other while a run goes on.

By itself this uses services that behave as those of the protocol before. With `PARLEY_PREVIOUS`, the folder that a
wheel of the version before was installed to (`pip install --no-deps --target FOLDER WHEEL`), it uses that version.
"""

import os
from pathlib import Path

import pytest
import yaml

from parley.services.wire.version import PROTOCOLS
from parley.testing.federations import TwinFederation
from parley.testing.remains import remains_of, start, wait_for_end
from parley.testing.stage import small_policy, write_tables
from tests.contract_suite.test_bambi import TestBambi as BambiContract

CASE = BambiContract.case
LONG = yaml.safe_dump(yaml.safe_load(CASE.patient_spec.replace("steps: 4", "steps: 60")) | {"checkpoint_every": 5})
"""Long enough to be in the middle when a service is upgraded."""


def downgrade(local, *services):
    """Let services be of the version before when they start next."""
    if previous := os.environ.get("PARLEY_PREVIOUS"):
        assert (Path(previous) / "parley" / "__init__.py").exists(), f"{previous} holds no installed wheel of Parley"
        local.wrappers = {name: ["env", f"PYTHONPATH={Path(previous).resolve()}"] for name in services}
    else:
        kinds = {name: "coordinator" if name == "coordinator" else "party" for name in services}
        local.modules = {name: f"tests.integration.previous_{kind}" for name, kind in kinds.items()}


def upgrade(local, name):
    """Bring one service to this version: stopped, and started again."""
    local.kill(name)
    local.wrappers = {other: command for other, command in local.wrappers.items() if other != name}
    local.modules = {other: module for other, module in local.modules.items() if other != name}
    local.restart(name)


def next_checkpoint(run):
    next(event for event in run.watch() if event.progress.checkpoint)


@pytest.mark.slow
def test_a_rolling_upgrade_changes_no_bit_of_a_run_that_goes_on_through_it(tmp_path):
    tables, labels = write_tables(tmp_path / "data", [CASE])
    left, spoken = {}, []
    for way in ("quiet", "rolling"):
        local = TwinFederation(tmp_path / way, tables, labels, policy=small_policy([CASE]))
        last, *others = tables
        if way == "rolling":
            downgrade(local, "coordinator", last, *others)
        with local, local.connect() as client:
            run = start(client, LONG, "upgraded")
            if way == "rolling":
                next_checkpoint(run)
                upgrade(local, "coordinator")  # which goes on with the run by itself
                for name in others:
                    upgrade(local, name)
                resumed = any(event.state_change.attempt > 1 for event in run.watch())
                run = client.run(run.run_id)
                assert resumed, f"{run.state}: {run.reason}"
                spoken.append(client.run(run.run_id).message.protocol)
                upgrade(local, last)
            run = wait_for_end(client, run.run_id)
            assert run.state == "COMPLETED", run.reason
            spoken.append(run.message.protocol)
            left[way] = remains_of(local, client, run.run_id)
    assert left["rolling"] == left["quiet"]
    assert spoken == [PROTOCOLS[-1], PROTOCOLS[-2], PROTOCOLS[-1]]


def test_a_party_of_the_version_before_takes_part_in_a_run_and_in_predictions(tmp_path):
    tables, labels = write_tables(tmp_path / "data", [CASE])
    local = TwinFederation(tmp_path / "mixed", tables, labels, policy=small_policy([CASE]))
    downgrade(local, next(iter(tables)))
    with local, local.connect() as client:
        run = client.start(CASE.patient_spec)
        run.result()
        assert run.message.protocol == PROTOCOLS[-2]
        assert {party.protocol for party in client.parties()} == {PROTOCOLS[-2], PROTOCOLS[-1]}
        assert not any(party.problem for party in client.parties())
        assert len(client.predict(run.run_id).ids)
