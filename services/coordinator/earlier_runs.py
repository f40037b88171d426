"""Runs that began under 0.1.0, which noted neither protocol nor owner: they go on as they began, or not at all.

A field that was left out may mean something else by now, and an algorithm may take other steps. Going on regardless
would mix two computations under one name, so each algorithm says what 0.1.0 meant, or that its steps were others.
"""

from dataclasses import replace

import yaml

from parley.services.coordinator.programs import coordinator_side
from parley.services.coordinator.registry_tables import RunRecord
from parley.spec.parsing import parse_spec


class StepsDiffer(ValueError):
    """A run began under a version that took other steps."""


def as_begun(record: RunRecord) -> RunRecord:
    """A run with the spec that it began with, where this version would read the text differently."""
    if not _began_with_first(record):
        return record
    content = yaml.safe_load(record.spec_yaml)
    train = coordinator_side(parse_spec(record.spec_yaml)).as_first(content["train"])
    if train is None or train == content["train"]:
        return record
    return replace(record, spec_yaml=yaml.safe_dump(content | {"train": dict(train)}, sort_keys=False))


def require_same_steps(record: RunRecord) -> None:
    """Refuse a run that this version cannot go on with as it began, before any party is asked.

    Raises:
        StepsDiffer: with what to do.
    """
    side = coordinator_side(parse_spec(record.spec_yaml))
    if _began_with_first(record) and side.as_first(yaml.safe_load(record.spec_yaml)["train"]) is None:
        raise StepsDiffer(
            f"run {record.run_id} began under a version of Parley whose steps were others: start a new run with its "
            "spec, or go on with the version that it began with; what it has released stays in its ledger"
        )


def _began_with_first(record: RunRecord) -> bool:
    return record.attempt > 0 and record.protocol == 0 and not record.owner
