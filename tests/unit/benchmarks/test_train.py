import pytest

import parley.party.bambi.steps as party
from parley.benchmarks.train import NAMES, Figures, Phases, Reached, _timed, modes, phase_rows, spec_of, speed_rows
from parley.simulation import train_tables
from parley.spec.parsing import parse_spec
from parley.splitting import split_dataset
from parley.tables.loading import TableRequest, load_labels, load_table


def figures() -> dict[str, Figures]:
    slow, fast = Reached(8.0, 400.0, 4e6, 200.0), Reached(2.0, 100.0, 1e6, 10.0)
    phases = Phases(coordinator=1.0, parties=2.0, codec=0.5, slowest_party=3.0, round_trips=7.0, rounds=1000.0)
    return {mode: Figures([fast if mode == "implicit" else slow], [1.0], [phases]) for mode in modes()}


def test_rounds_bytes_and_releases_are_held_against_zeroth_order():
    found = {(row["case"], row["metric"]): row["ratio"] for row in speed_rows(figures())}
    assert found["implicit, to 96%", "rounds"] == 0.25
    assert found["implicit, to 96%", "bytes"] == 0.25
    assert found["implicit, to 96%", "label releases"] == 0.05
    assert found["zeroth_order, to 96%", "seconds"] == 8.0


def test_coordinator_party_and_wire_make_up_a_round():
    parts = {row["metric"]: row for row in phase_rows(figures()) if row["case"] == "implicit"}
    whole = ("computing at the coordinator", "waiting for the slowest party", "wire and turns of the system")
    assert sum(parts[part]["value"] for part in whole) == pytest.approx(8.0)
    assert sum(parts[part]["ratio"] for part in whole) == pytest.approx(1.0)


def test_timing_a_run_leaves_its_result_and_the_product_as_they_were(tmp_path):
    split_dataset("digits", NAMES, tmp_path, limit=200)
    tables = [load_table(TableRequest(tmp_path / f"{name}.parquet")) for name in NAMES]
    labels = load_labels(tmp_path / "labels.parquet")
    spec = parse_spec(spec_of("implicit"))
    apply, phases = party.apply, Phases()
    plain = train_tables(spec, tables, labels)
    with _timed(phases):
        timed = train_tables(spec, tables, labels)
    assert timed.metrics == plain.metrics
    assert party.apply is apply
    assert phases.parties > 0
    assert phases.codec > 0
