"""The services that `parley bench peers` measures: Parley's own, with a mirror in the place of an algorithm."""

from parley.benchmarks.null_federation import Protection, federation, null_spec

NAMES = ("bank", "shop", "telco")
SERVICE = "parley.benchmarks.peers.averaging_"


def test_a_mirror_in_the_place_of_an_algorithm_makes_every_round_that_was_asked_for(tmp_path):
    local = federation(tmp_path, NAMES, rows=64)
    local.modules = {**dict.fromkeys(NAMES, f"{SERVICE}party"), "coordinator": f"{SERVICE}coordinator"}
    with local, local.connect() as client:
        for aggregation in ("plain", "pairwise"):
            metrics = client.start(null_spec(NAMES, Protection(aggregation), steps=7, batch=16)).result()
            assert metrics["rounds"] == 7 + 1, "and one in which everybody finishes"
