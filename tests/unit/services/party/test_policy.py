"""The owner's floors: each refusal names the floor and what to do."""

import pytest
from pydantic import ValidationError

from parley.party.roles import Coverage
from parley.services.party.config import PartyConfig, Policy
from parley.services.party.policy import (
    PolicyRefused,
    check_coverage,
    check_policy,
    chosen_columns,
    floors_of,
)
from parley.spec.parsing import parse_spec

BASE = {"coordinators": ["hub"], "algorithms": ["bambi"]}
VIEWS = {"train": {"small": ["a", "b"], "large": ["a", "b", "c"]}}
ENOUGH = Coverage(rows=500, batch=64, sums=10, evaluated=100)


def policy(**changes) -> Policy:
    return Policy.model_validate(BASE | changes)


def spec(own: str = "bank", aggregation: str = "{kind: pairwise}", parties: str = "shop, telco"):
    return parse_spec(
        f"name: r\nparties: [{own}, {parties}]\ntrain: {{algorithm: bambi}}\nprivacy: {{aggregation: {aggregation}}}\n"
    )


def check(given: Policy, asked) -> None:
    check_policy(given, asked, 0, "hub")


def test_the_defaults_take_an_ordinary_run():
    check(policy(), spec())
    check_coverage(policy(), spec(), 0, ENOUGH)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (spec(parties="shop"), "`minimum_parties` is 3: let more parties take part"),
        (spec(aggregation="{limit: 4}"), "`aggregation.limit` of the policy is 65536: write that one"),
        (spec(aggregation="{limit: 131072}"), "`aggregation.limit`"),
        (spec("{name: bank, columns: [a]}"), "`free_columns` is off.*leave `columns` out"),
        (spec("{name: bank, view: small}"), "`views` has no 'small' of table train"),
    ],
)
def test_a_default_floor_is_named(asked, said):
    with pytest.raises(PolicyRefused, match=said):
        check(policy(), asked)


def test_a_table_with_views_is_open_by_them_alone():
    given = policy(views=VIEWS)
    check(given, spec("{name: bank, view: small}"))
    assert chosen_columns(given, spec("{name: bank, view: large}"), 0) == ("a", "b", "c")
    for own in ("bank", "{name: bank, columns: [a, b]}"):
        with pytest.raises(PolicyRefused, match="write `view: small`"):
            check(given, spec(own))
    with pytest.raises(PolicyRefused, match="there are small, large"):
        check(given, spec("{name: bank, view: other}"))


def test_a_free_choice_is_the_owners_to_give():
    given = policy(free_columns=True)
    asked = spec("{name: bank, columns: [a]}")
    check(given, asked)
    assert chosen_columns(given, asked, 0) == ("a",)
    assert chosen_columns(given, spec(), 0) is None


def test_the_rings_limit_is_the_policys():
    given = policy(aggregation={"limit": 512})
    check(given, spec(aggregation="{limit: 512}"))
    with pytest.raises(PolicyRefused, match="is 512: write that one"):
        check(given, spec())
    check(policy(), spec(aggregation="{ring_bits: 32}"))


def test_values_that_do_not_fit_spoil_a_sum_unless_the_owner_lets_them_be_clipped():
    assert floors_of(policy()).beyond == "spoil"
    assert floors_of(policy(aggregation={"out_of_range": "clip"})).beyond == "clip"


@pytest.mark.parametrize(
    ("covered", "said"),
    [
        (Coverage(rows=29, batch=29, sums=1), "`minimum_rows`, 30"),
        (Coverage(rows=500, batch=7, sums=1), "`minimum_batch`, 8: take larger batches"),
        (Coverage(rows=500, batch=64, sums=1, evaluated=1), "`minimum_evaluation`, 20"),
        (None, "does not say what its sums cover"),
    ],
)
def test_a_floor_of_rows_is_named_and_no_figure_of_the_party_is_told(covered, said):
    with pytest.raises(PolicyRefused, match=said) as refused:
        check_coverage(policy(), spec(), 0, covered)
    assert "29" not in str(refused.value)


def test_noise_of_the_partys_own_needs_no_floor_of_a_batch():
    check_coverage(policy(), spec(), 0, Coverage(rows=500, batch=1, sums=1, exact=False))


def test_exact_sums_are_for_the_algorithms_and_tables_that_the_owner_names():
    check_coverage(policy(exact_sums={"bambi": ["train"]}), spec(), 0, ENOUGH)
    for exact in ({}, {"bambi": ["other"]}):
        with pytest.raises(PolicyRefused, match="`exact_sums` does not let bambi see"):
            check_coverage(policy(exact_sums=exact), spec(), 0, ENOUGH)


def test_a_policy_of_columns_is_told_what_has_taken_its_place():
    with pytest.raises(ValidationError, match="given way to views"):
        policy(columns=["age"])


@pytest.mark.parametrize("field", [{"views": {"trian": {"v": ["a"]}}}, {"exact_sums": {"bambi": ["trian"]}}])
def test_a_floor_of_a_table_that_is_not_there_is_refused(field, tmp_path):
    content = {
        "name": "bank",
        "identity": tmp_path,
        "state": tmp_path,
        "tables": {"train": {"path": tmp_path / "t.csv"}},
        "policy": BASE | field,
    }
    with pytest.raises(ValidationError, match="'trian', which this party does not have"):
        PartyConfig.model_validate(content)
