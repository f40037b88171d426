"""`parley explore` lists each two columns once, and draws what there is to draw."""

import pytest

from parley.commands import explore
from parley.commands.explore import correlation_rows, draw, draw_correlations
from parley.commands.refusals import Refused

FOUND = {
    ("bank", "limit"): {"correlation place": 1.0, "correlation with shop 1": 0.2, "correlation with telco 2": -0.7},
    ("shop", "orders"): {"correlation place": 1.0, "correlation with bank 1": 0.2, "correlation with telco 2": 0.4},
    ("shop", "returns"): {"rows": 100.0},
}
"""The phone company keeps the names of its columns."""
BINNED = {
    ("bank", "limit"): {"iv": 0.3, "bin 1 up to": 12_345.0, "bin 1 share": 0.6, "bin 1 woe": 0.5}
    | {"bin 2 share": 0.4, "bin 2 woe": -0.6},
    ("shop", "orders"): {"bin 1 share": 1.0},
}


def test_each_two_columns_are_listed_once_the_strongest_first():
    rows = [(row["party"], row["column"], row["with"], row["correlation"]) for row in correlation_rows(FOUND)]
    assert rows == [
        ("bank", "limit", "telco column 2", -0.7),
        ("shop", "orders", "telco column 2", 0.4),
        ("bank", "limit", "shop orders", 0.2),
    ]


@pytest.mark.parametrize(("drawer", "found"), [(draw, BINNED), (draw_correlations, FOUND)])
@pytest.mark.parametrize(("ending", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_what_was_found_is_drawn_into_a_file(tmp_path, drawer, found, ending, begins):
    drawer(found, tmp_path / f"drawn.{ending}")
    assert (tmp_path / f"drawn.{ending}").read_bytes().startswith(begins)


def test_nothing_is_drawn_where_there_is_nothing_or_no_place_for_it(tmp_path):
    with pytest.raises(Refused, match="no bins"):
        draw(FOUND, tmp_path / "drawn.png")
    with pytest.raises(Refused, match="no correlations"):
        draw_correlations(BINNED, tmp_path / "drawn.png")
    with pytest.raises(Refused, match="png"):
        draw(BINNED, tmp_path / "drawn.txt")
    with pytest.raises(Refused, match="no folder"):
        draw(BINNED, tmp_path / "absent" / "drawn.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("drawer", "kind"), [(draw, "bins"), (draw_correlations, "pairs")])
def test_of_very_many_columns_those_that_say_most_are_drawn(tmp_path, monkeypatch, drawer, kind):
    """One text column of a thousand levels would else be a picture of a thousand panels."""
    monkeypatch.setattr(explore, "MOST_DRAWN", 4)
    binned = {"iv": 0.0, "bin 1 up to": 0.5, "bin 1 share": 0.6, "bin 1 woe": 0.5, "bin 2 share": 0.4, "bin 2 woe": -1}
    found = {
        ("shop", f"town={number}"): binned | {"iv": float(number)}
        if kind == "bins"
        else {"correlation place": float(number), "correlation with bank 1": number / 1000}
        for number in range(1, 1000)
    }
    drawer(found, tmp_path / "drawn.svg")
    drawn = (tmp_path / "drawn.svg").read_text()
    assert f"the 4 of {len(found) + (kind == 'pairs')}" in drawn
    assert "town=999" in drawn
    assert "town=1 " not in drawn
