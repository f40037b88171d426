"""A spec has one digest in all versions that read it alike."""

import yaml
from pydantic import Field

from parley.spec import digests
from parley.spec.digests import first_fields, spec_digest
from parley.spec.parsing import parse_spec
from parley.spec.run import RunSpec

EXAMPLE = """\
name: digits-vfhrl
seed: 0
parties: [bank, shop, telco]
split: {lower: 0.6, upper: 0.2, test: 0.2}
train:
  algorithm: bambi
  problem: hyper_representation
  hypergradient: implicit
  loss: softmax
  regularisation: 0.01
  model: {kind: mlp, hidden: [64], out: 16}
  upper: {steps: 22, batch: null, optimiser: {kind: adam, step: 0.03, decay_from: 0.3}}
  lower: {solver: newton, steps: 1, warmup_steps: 2, batch: 700}
  implicit: {rounds: 1, newton_rounds: 1}
privacy:
  aggregation: {kind: pairwise, minimum_parties: 3}
  labels: {mechanism: once, epsilon: 6, budget: 6}
evaluate_every: 8
"""
"""A spec as it stood when its digest was noted."""
AS_BEFORE = "7f2a960519f9a4786a2500456e7b47098cc21de91cf308052f859aa19cfb9baf"


class Younger(RunSpec):
    """A spec as a later version reads it, with one more field."""

    patience: int = Field(default=3)


Younger.__qualname__, Younger.__module__ = RunSpec.__qualname__, RunSpec.__module__


def younger(**changes):
    return Younger.model_validate(yaml.safe_load(EXAMPLE) | changes)


def test_a_spec_has_the_digest_that_it_had_before_fields_were_listed():
    assert spec_digest(parse_spec(EXAMPLE)) == AS_BEFORE


def test_a_younger_field_counts_only_where_it_is_not_at_its_default():
    assert spec_digest(younger()) == AS_BEFORE
    assert spec_digest(younger(patience=4)) != AS_BEFORE


def test_a_changed_default_of_an_old_field_changes_the_digest():
    assert spec_digest(younger(checkpoint_every=7)) != AS_BEFORE


def test_the_fields_of_a_section_that_is_not_listed_all_count(monkeypatch):
    without = {name: fields for name, fields in first_fields().items() if name != "spec.run.RunSpec"}
    monkeypatch.setattr(digests, "first_fields", lambda: without)
    assert spec_digest(younger()) != AS_BEFORE
