"""The pages of results hold every figure that is kept, and say of every table of the papers where it is."""

import importlib.util
import re
from itertools import pairwise
from pathlib import Path

import pytest

from parley.reproduction import EXPERIMENTS

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def results():
    loaded = importlib.util.spec_from_file_location("results", ROOT / "docs" / "results.py")
    module = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(module)
    return module


def row(case, metric, ours, paper=None, **rest):
    return {"case": case, "metric": metric, "ours": ours, "paper": paper, **rest}


def test_the_pages_are_what_the_kept_rows_say(results):
    for file, content in results.pages(results.stored()).items():
        assert (ROOT / "docs" / file).read_text() == content, f"docs/{file}: run `python docs/results.py`"


def test_every_page_of_results_is_made(results):
    made = {f"docs/{file}" for file in results.pages(results.stored())}
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "results").glob("*.md")}
    assert there <= made


def test_an_experiment_without_a_full_result_is_named_with_the_reason(results):
    kept = {name for name, result in results.stored().items() if not result["quick"]}
    assert set(EXPERIMENTS) - kept <= set(results.NOT_KEPT), "say why in NOT_KEPT of docs/result_tables.py"


def test_every_experiment_of_a_paper_is_beside_one_of_its_tables(results):
    placed = {name for paper in results.COVERAGE.values() for shown in paper.shown for name in shown.experiments}
    assert placed <= set(EXPERIMENTS)
    assert {name for name in EXPERIMENTS if name.startswith(tuple(results.COVERAGE))} <= placed


def test_what_is_absent_has_a_reason(results):
    absent = [each for paper in results.COVERAGE.values() for each in paper.shown if not each.experiments]
    assert absent
    assert [each.name for each in absent if not each.remark] == []


def test_no_figure_is_lost_in_a_layout(results):
    for name, result in results.stored().items():
        lines = results.tables(name, result["rows"])
        figures = [
            line for line, after in pairwise([*lines, ""]) if "---" not in line + after and "*the paper*" not in line
        ]
        shown = sum(
            len(re.findall(r"(?<=\| )[*\d-]+[^|]*(?= \|)", "| " + line.partition(" | ")[2])) for line in figures
        )
        hidden = results.NOT_SHOWN.get(name, "nothing")
        wanted = [
            each
            for each in result["rows"]
            if each["ours"] is not None and not re.fullmatch(hidden, f"{each['case']} · {each['metric']}")
        ]
        assert shown == len(wanted), name


def test_the_better_of_ours_and_the_paper_s_is_bold(results):
    rows = [row("SGP, FC", "mean accuracy", 0.9, 0.8), row("HGP-PL, FC", "mean accuracy", 0.7, 0.8)]
    table = results.tables("hgp-tables", rows)
    assert "| SGP | **0.9** (0.8) |" in table
    assert "| HGP-PL | 0.7 (**0.8**) |" in table


def test_where_the_paper_prints_nothing_the_best_method_is_bold(results):
    rows = [
        row("a-x", "rounds to 1e-3", 90.0, sd=1.0),
        row("b-x", "rounds to 1e-3", None),
        row("c-x", "rounds to 1e-3", 95.0),
    ]
    table = results.tables("asysqn-a9a", rows)
    assert "| a-x | **90 ± 1** |" in table
    assert "| b-x | – |" in table
    assert "| c-x | 95 |" in table


def test_a_line_of_its_own_for_the_paper_is_judged_with_ours(results):
    rows = [row("once ε=1", "accuracy", 0.92, 0.936), row("once ε=5", "accuracy", 0.95, 0.9423)]
    table = results.tables("bambi-dp-mnist", rows)
    assert table[:4] == [
        "| Table 1: test accuracy | ε = 5 | ε = 1 |",
        "|---|---|---|",
        "| *the paper* | 0.9423 | **0.936** |",
        "| once | **0.95** | 0.92 |",
    ]
