from parley.benchmarks.relay import WAYS, specs, speed_rows
from parley.spec.parsing import check_spec


def test_ratios_are_medians_over_rounds_against_the_direct_way():
    seconds = {"direct": [0.1, 0.2, 0.1], "relayed": [0.2, 0.2, 0.4]}
    direct, relayed = speed_rows("pairwise", seconds)
    assert (direct["case"], direct["value"], direct["ratio"]) == ("direct", 10.0, None)
    assert (relayed["case"], relayed["metric"], relayed["unit"]) == ("relayed", "steps", "1/s")
    assert (relayed["baseline"], relayed["ratio"]) == ("direct", 0.5)


def test_other_runs_are_named_after_the_way():
    seconds = {way: [0.1] for way in WAYS}
    assert [row["case"] for row in speed_rows("digits", seconds)] == [
        "direct, digits",
        "relayed, digits",
        "relayed by the coordinator, digits",
    ]


def test_every_case_is_a_spec_that_is_accepted():
    assert not [problem for spec in specs().values() for problem in check_spec(spec)]
    assert "direct" in WAYS
