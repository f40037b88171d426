"""The register of exposure: what it refuses, what it counts, and that it remembers."""

from dataclasses import replace

import numpy as np
import pytest

from parley.services.party import exposure
from parley.services.party.config import Policy
from parley.services.party.exposure import Asked, ExposureRefused, difference, first_names, open_register
from parley.services.party.exposure_tables import ANY_SEED, Exposure, row_hashes

FIRST = Exposure(
    run_id="one",
    algorithm="bambi",
    layout="vertical",
    table="train",
    table_digest="t",
    rows_digest="all",
    view="",
    columns=("a", "b"),
    partners=("bank", "shop", "telco"),
    seed=0,
    spec_digest="s",
    exact=True,
    rank=2,
)
IDS = np.array([f"r{i}" for i in range(40)])


def policy(**changes) -> Policy:
    return Policy.model_validate(
        {"coordinators": ["hub"], "algorithms": ["bambi"], "sums_per_row": "unbounded"} | changes
    )


def asked(ids=IDS, sums=1, own_batches=False, **changes) -> Asked:
    return Asked(replace(FIRST, **changes), ids, sums, own_batches)


@pytest.fixture
def register(tmp_path):
    found = open_register(f"sqlite:///{tmp_path / 'party.db'}")
    found.begin(asked(), policy())
    yield found
    found.close()


NETWORK = {"rank": None}


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        ({"columns": ("a",), "seed": 5}, "other columns"),  # linear: another seed helps nothing
        ({"partners": ("bank", "shop"), "seed": 5}, "other partners"),
        ({"columns": ("a",), "rank": None}, "other columns"),
        ({"columns": ("a",), "rank": None, "seed": 5}, None),
        ({"partners": ("bank", "shop"), "rank": None, "seed": 5}, None),
        ({"partners": ("bank", "shop"), "exact": False}, None),
        ({"partners": ("bank", "shop"), "table": "other"}, None),
        ({"seed": 5}, None),
        ({}, None),
        ({"rows_digest": "some"}, None),
        ({"rows_digest": "some", "layout": "horizontal"}, "some of the same rows"),
        ({"rows_digest": "some", "layout": "horizontal", "seed": 5}, None),
        ({"rows_digest": "some", "layout": "horizontal", "seed": ANY_SEED}, "some of the same rows"),
        ({"partners": ("bank", "shop"), "rank": None, "seed": ANY_SEED}, "other partners"),
        ({"drawn": "31 of 60"}, None),  # each row has values of its own
        ({"drawn": "31 of 60", "layout": "horizontal"}, "some of the same rows, with the same seed"),
        ({"drawn": "31 of 60", "layout": "horizontal", "seed": 5}, None),
        ({"layout": "figures", "columns": ("a",), "partners": ("bank", "shop")}, None),
    ],
)
def test_runs_that_could_be_subtracted_are_told_from_those_that_could_not(changes, how):
    found = difference(replace(FIRST, run_id="two", **changes), FIRST)
    assert (found is None) == (how is None)
    assert how is None or how in (found or "")


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        ({"drawn": "9 bins", "seed": 5}, "figures over some of the same rows"),
        ({"rows_digest": "some", "seed": 5}, "figures over some of the same rows"),
        ({"columns": ("a",), "partners": ("bank", "shop"), "seed": 5}, None),
    ],
)
def test_figures_of_columns_are_told_over_one_choice_of_rows(changes, how):
    first = replace(FIRST, layout="figures", rank=None, drawn="10 bins")
    assert difference(replace(first, run_id="two", **changes), first) == how


def test_a_run_with_other_partners_is_refused_and_names_the_earlier_one(register):
    with pytest.raises(ExposureRefused, match=r"run one \(other partners.*same columns and partners"):
        register.begin(asked(run_id="two", partners=("bank", "shop")), policy())
    assert len(register.entries()) == 1


def test_another_seed_is_the_remedy_where_blocks_are_not_linear(tmp_path):
    register = open_register(f"sqlite:///{tmp_path / 'party.db'}")
    register.begin(asked(**NETWORK), policy())
    with pytest.raises(ExposureRefused, match="choose another seed"):
        register.begin(asked(run_id="two", partners=("bank", "shop"), **NETWORK), policy())
    register.begin(asked(run_id="two", partners=("bank", "shop"), seed=1, **NETWORK), policy())
    register.close()


def test_rows_that_have_nothing_in_common_cannot_be_subtracted(register):
    others = np.array([f"x{i}" for i in range(40)])
    register.begin(asked(others, run_id="two", rows_digest="others", columns=("a",)), policy())
    one_common = np.array(["r3", *(f"y{i}" for i in range(39))])
    with pytest.raises(ExposureRefused, match="other columns"):
        register.begin(asked(one_common, run_id="three", rows_digest="mixed", columns=("a",)), policy())


def test_the_same_run_goes_on_and_a_second_one_with_the_same_choice_begins(register):
    register.begin(asked(), policy())
    register.begin(asked(run_id="two", seed=1), policy())
    assert [entry.run_id for entry in register.entries()] == ["one", "two"]


def test_a_run_id_is_not_used_again_for_something_else(register):
    with pytest.raises(ExposureRefused, match="begun here with other columns, partners or seed"):
        register.begin(asked(seed=4), policy(differencing="allow"))


def test_a_table_that_two_runs_read_beside_their_own_is_not_summed_with_other_partners(tmp_path):
    """Checked rows are in the averages as training rows are."""
    register = open_register(f"sqlite:///{tmp_path / 'party.db'}")

    def with_checked(number: int, **changes) -> Asked:
        own = {"table": f"train{number}", "run_id": str(number), "layout": "horizontal", **NETWORK, **changes}
        beside = asked(np.array(["c1", "c2"]), sums=0, **own | {"table": "checked", "rows_digest": "c", "share": 0.0})
        return replace(asked(**own), further=(beside,))

    register.begin(with_checked(1), policy())
    with pytest.raises(ExposureRefused, match=r"run 1 \(other partners.*another seed"):
        register.begin(with_checked(2, partners=("bank", "shop")), policy())
    register.begin(with_checked(2, partners=("bank", "shop"), seed=1), policy())
    counter = register.counter("2", policy())
    counter.count()
    counter.close()
    assert {each.table: each.sums for each in register.entries() if each.run_id == "2"} == {"checked": 0, "train2": 1}
    with pytest.raises(ExposureRefused, match="counts as infinite"):
        register.review(with_checked(3, exact=False), policy())
    register.close()


def test_rows_are_the_same_however_their_ids_are_spelt():
    np.testing.assert_array_equal(row_hashes(np.array(["17.0", " a"])), row_hashes(np.array(["17", "a"])))


def test_rows_that_are_registered_are_not_hashed_again(register, monkeypatch):
    monkeypatch.setattr(exposure, "row_hashes", lambda ids: pytest.fail("hashed"))
    for number in range(2):
        register.review(asked(run_id=f"again {number}"), policy())
        register.begin(asked(run_id=f"again {number}"), policy())
    with pytest.raises(ExposureRefused):
        register.review(asked(run_id="two", partners=("bank", "shop")), policy())


def test_an_owner_may_allow_it_or_have_other_batches_drawn(register):
    twice = asked(run_id="two", columns=("a",), own_batches=True)
    register.begin(asked(run_id="three", columns=("b",)), policy(differencing="allow"))
    salt = register.begin(twice, policy(differencing="salt")).salt
    assert salt
    assert register.begin(twice, policy(differencing="salt")).salt == salt  # a resumed run draws the same batches
    with pytest.raises(ExposureRefused, match="a salt changes nothing"):
        register.begin(asked(run_id="four", columns=("a", "c")), policy(differencing="salt"))


def test_a_view_serves_so_many_runs(register):
    register.begin(asked(run_id="two"), policy(runs_per_view=2))
    with pytest.raises(ExposureRefused, match=r"`runs_per_view` is reached: table train has served 2"):
        register.begin(asked(run_id="three"), policy(runs_per_view=2))
    register.begin(asked(), policy(runs_per_view=2))


def test_sums_are_counted_ahead_and_given_back(register):
    counter = register.counter("one", policy(), block=10)
    for _ in range(11):
        counter.count()
    assert register.entries()[0].sums == 20  # what a crash now would leave
    counter.close()
    assert register.entries()[0].sums == 11


def test_an_answer_with_many_sums_of_a_row_counts_as_many(register):
    counter = register.counter("one", policy(sums_per_row=30), block=10)
    counter.count(25)
    counter.count(0)
    with pytest.raises(ExposureRefused, match="`sums_per_row` is reached"):
        counter.count(6)
    counter.count(5)
    counter.close()
    assert register.entries()[0].sums == 30


def test_sums_stay_counted_where_the_database_takes_no_write(tmp_path, caplog):
    database = tmp_path / "party.db"
    register = open_register(f"sqlite:///{database}")
    register.begin(asked(), policy())
    counter = register.counter("one", policy(), block=10)
    counter.count()
    register.close()
    database.write_bytes(b"no database" * 1000)
    counter.close()
    assert "9 sums that did not leave stay counted" in caplog.text


def test_a_floor_of_sums_holds_over_runs(register):
    register.begin(asked(run_id="two", seed=1), policy())
    first, floor = register.counter("one", policy(), block=4), policy(sums_per_row=6)
    for _ in range(4):
        first.count()
    second = register.counter("two", floor, block=4)
    second.count()
    second.count()
    with pytest.raises(ExposureRefused, match="`sums_per_row` is reached"):
        second.count()
    with pytest.raises(ExposureRefused, match="`sums_per_row` is reached"):
        register.review(asked(run_id="three", seed=2), floor)


def test_a_sum_over_a_batch_counts_for_its_share_of_the_rows(tmp_path):
    register = open_register(f"sqlite:///{tmp_path / 'party.db'}")
    register.begin(asked(share=0.25), policy())
    counter = register.counter("one", policy(sums_per_row=2), block=100)
    for _ in range(8):
        counter.count()
    with pytest.raises(ExposureRefused):
        counter.count()
    assert register.entries()[0].sums_per_row == 2
    register.close()


def test_a_run_that_would_pass_the_floor_is_refused_before_it_begins(register):
    with pytest.raises(ExposureRefused, match=r"needs about 30 sums of each row.*`sums_per_row` is 20"):
        register.review(asked(run_id="two", sums=30), policy(sums_per_row=20))


@pytest.mark.parametrize("exact", [True, False])
def test_an_exact_run_counts_as_infinite_against_rows_with_a_finite_epsilon(tmp_path, exact):
    register = open_register(f"sqlite:///{tmp_path / 'party.db'}")
    register.begin(asked(exact=not exact), policy())
    register.review(asked(exact=not exact), policy())  # the same run goes on
    other = asked(run_id="two", seed=9, exact=exact)
    with pytest.raises(ExposureRefused, match=r"run one has used .*counts as infinite"):
        register.review(other, policy())
    register.review(other, policy(mixing="allow"))
    register.review(asked(run_id="two", seed=9, exact=exact, table="other"), policy())
    apart = np.array([f"s{i}" for i in range(40)])
    register.review(asked(ids=apart, run_id="two", seed=9, exact=exact, rows_digest="apart"), policy())
    some = np.array(["r3", *(f"s{i}" for i in range(39))])
    with pytest.raises(ExposureRefused, match="counts as infinite"):
        register.review(asked(ids=some, run_id="two", seed=9, exact=exact, rows_digest="some"), policy())
    register.close()


COLUMNS = {"sums_per_row": "columns"}


def test_by_default_a_linear_block_gives_fewer_sums_than_tell_its_columns(tmp_path):
    floor = Policy.model_validate({"coordinators": ["hub"], "algorithms": ["bambi"]})
    register = open_register(f"sqlite:///{tmp_path / 'party.db'}")
    assert register.review(asked(rank=4, sums=3), floor).warnings  # warns,
    with pytest.raises(ExposureRefused, match=r"needs about 4 sums of each row.*`sums_per_row` is columns, which is 3"):
        register.review(asked(rank=4, sums=4), floor)  # then refuses
    assert register.review(asked(rank=None, sums=10_000), floor).warnings == ()
    assert register.review(asked(rank=4, sums=10_000, exact=False), floor).warnings == ()
    register.begin(asked(rank=4, sums=1), floor)
    counter = register.counter("one", floor)
    for _ in range(3):  # whatever was foretold
        counter.count()
    with pytest.raises(ExposureRefused, match="`sums_per_row` is reached: it is columns"):
        counter.count()
    counter.close()
    register.close()


def test_sums_of_several_values_count_for_as_many_sums_of_one(tmp_path):
    register = open_register(f"sqlite:///{tmp_path / 'party.db'}")
    register.begin(asked(rank=3), policy(**COLUMNS))  # 12 columns, four values of a row in each sum
    counter = register.counter("one", policy(**COLUMNS), block=2)
    counter.count()
    counter.count()
    with pytest.raises(ExposureRefused, match="8 have left before"):
        register.review(asked(run_id="two", rank=12, sums=4), policy(**COLUMNS))
    register.review(asked(run_id="two", rank=12, sums=3), policy(**COLUMNS))
    register.close()


def test_a_linear_block_warns_from_half_its_columns_on(register):
    assert register.review(asked(run_id="two", rank=20, sums=9), policy()).warnings == ()
    (said,) = register.review(asked(run_id="two", rank=20, sums=10), policy()).warnings
    assert "from 20 sums on" in said
    assert register.review(asked(run_id="two", rank=None, sums=10), policy()).warnings == ()


def test_the_register_outlives_the_process(tmp_path):
    url = f"sqlite:///{tmp_path / 'party.db'}"
    first = open_register(url)
    first.begin(asked(), policy())
    first.close()
    again = open_register(url)
    with pytest.raises(ExposureRefused):
        again.begin(asked(run_id="two", columns=("a",)), policy())
    again.close()


@pytest.fixture
def two_names(tmp_path):
    """A register that knows that two tables read one file."""
    paths = {
        "train": str(tmp_path / "rows.csv"),
        "again": str(tmp_path / "." / "rows.csv"),
        "other": "s3://bucket/rows",
    }
    found = open_register(f"sqlite:///{tmp_path / 'names.db'}", first_names(paths))
    yield found
    found.close()


def test_a_file_is_the_same_table_under_each_of_its_names(two_names):
    two_names.begin(asked(), policy())
    for changes in ({"columns": ("a",)}, {"partners": ("bank", "shop")}):
        with pytest.raises(ExposureRefused, match="could be subtracted"):
            two_names.review(asked(run_id="two", table="again", **changes), policy())
        two_names.review(asked(run_id="two", table="other", **changes), policy())
    with pytest.raises(ExposureRefused, match="`runs_per_view` is reached"):
        two_names.review(asked(run_id="two", table="again"), policy(runs_per_view=1))
    with pytest.raises(ExposureRefused, match="without noise"):
        two_names.review(asked(run_id="two", table="again", exact=False), policy())
    assert [each.table for each in two_names.entries()] == ["train"]


def test_sums_are_counted_over_all_names_of_a_file(two_names):
    two_names.begin(asked(), policy())
    two_names.begin(asked(run_id="two", table="again"), policy())
    few = policy(sums_per_row=10)
    assert two_names.reserve("one", 8, few) == 8
    assert two_names.reserve("two", 8, few) == 2


def test_noise_is_not_drawn_anew_under_another_name(two_names):
    two_names.begin(asked(exact=False), policy())
    with pytest.raises(ExposureRefused, match="under another name of the same file, table train"):
        two_names.begin(asked(run_id="two", table="again", exact=False), policy())
    two_names.begin(asked(run_id="two", exact=False), policy())
    two_names.begin(asked(run_id="three", table="again", exact=False), policy(mixing="allow"))
