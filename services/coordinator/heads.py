"""The label head of a trained run: how the sum over all blocks becomes scores, and what its classes are called."""

import functools
from collections.abc import Sequence

from parley.coordinator.programs import Head
from parley.services.coordinator.alignment import chosen_rows
from parley.services.coordinator.config import CoordinatorConfig
from parley.services.coordinator.labels import LabelStore
from parley.services.coordinator.programs import coordinator_side
from parley.services.coordinator.registry import open_registry
from parley.spec.parsing import parse_spec
from parley.tables.alignments import AlignmentStore


class HeadMissing(LookupError):
    """The run has no joint prediction."""


def head_of(config: CoordinatorConfig, run_id: str) -> tuple[Head, Sequence[str]]:
    """The head of a run, read from this coordinator's database and labels.

    Raises:
        RunUnknown: if there is no such run.
        HeadMissing: if its parties predict each for themselves.
    """
    registry = open_registry(config.database_url)
    try:
        spec = parse_spec(registry.get(run_id).spec_yaml)
    finally:
        registry.close()
    make = coordinator_side(spec).head
    if make is None:
        raise HeadMissing(f"{spec.train.algorithm} has no label head: every party has the whole model")
    head = make(spec)
    labels = LabelStore(config.labels, functools.partial(chosen_rows, AlignmentStore(config.state), config.name))
    return head, labels.load(spec, head.labels).classes
