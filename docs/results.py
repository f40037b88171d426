"""The papers' tables and figures beside ours, from the rows that `parley reproduce` wrote.

parley reproduce all --out docs/results --data DIR --resume      hours; or one name at a time
python docs/results.py                                           writes docs/results.md and docs/results/<paper>.md

What the pages say about each experiment stands in result_tables.py.
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from parley.reproduction import EXPERIMENTS

sys.path.insert(0, str(Path(__file__).parent))  # where it is loaded by its path, as the tests do

from result_tables import CASES, COVERAGE, GRIDS, JUDGEMENTS, NOT_KEPT, NOT_SHOWN, Grid, Shown

FOLDER = Path(__file__).parent / "results"
PAGES = {"ldp": "ldp_dsbo"}
OTHERS = {
    "local": "Local rounds",
    "bilevel": "Where the second level pays",
    "feature": "Noise on rows",
    "credit": "Default of card holders",
    "fate": "FATE's quality benchmark",
}
ALONE = (
    "bambi-toy",
    "bambi-dp-attacks",
    "bilevel-pays",
    "fedbio-quadratic",
    "hgp-error",
    "hgp-influence",
    "ldp-dsbo-synthetic",
)
"""Experiments that need no data."""
LESS_IS_BETTER = ("error", "rounds", "MB", "bytes", "sub-optimality", "distance", "loss")
MORE_IS_BETTER = (
    "accuracy",
    "AUC",
    "cosine",
    "CRUI",
    "R2",
    "F1",
    "share of attainable decrease",
    "speed-up",
    "throughput",
)
DIGITS = 4

Row = dict[str, Any]
Results = dict[str, dict[str, Any]]


def pages(results: Results) -> dict[str, str]:
    """Every page by its file name below docs: the index, a page for each paper, and long tables of their own."""
    made = {"results.md": _index(results)}
    for key in (*COVERAGE, *OTHERS):
        names = [name for name in EXPERIMENTS if name.startswith(key) and name in results]
        if not names:
            continue
        made[f"results/{_page_of(key)}"] = _page(key, names, results)
        for name in names:
            if name in NOT_SHOWN:
                made[f"results/{name}-rows.md"] = _written([f"# {name}: every row", "", *_every_row(results[name])])
    return made


def _index(results: Results) -> str:
    full = [name for name in EXPERIMENTS if name in results and not results[name]["quick"]]
    others = [name for name in EXPERIMENTS if name not in full]
    papers = [f"[{paper.title}](results/{_page_of(key)})" for key, paper in COVERAGE.items()]
    lines = [
        "# Results",
        "",
        "Our figures beside those of the papers, made by `parley reproduce` at its full setting, written by",
        "`python docs/results.py`. Where each table and figure of a paper is, which are missing and why, is said",
        f"first on its page: {', '.join(papers)}.",
        "Where a claim of a paper does not hold, the page on its algorithm says so.",
        "",
        *_list(full, results),
    ]
    if others:
        lines += ["", "## Not at full size, and why", ""]
        lines += [f"- {_linked(name, results, 'results/')}" for name in others]
    return _written(lines)


def _list(names: Sequence[str], results: Results) -> list[str]:
    lines = ["| experiment | shows | seeds | load | made in |", "|---|---|---|---|---|"]
    for name in names:
        result = results[name]
        seeds = ", ".join(map(str, result["seeds"])) if "seeds" in result else "its own"
        load = f"{result['load']:g}" if "load" in result else "–"
        lines.append(
            f"| {_linked(name, results, 'results/')} | {EXPERIMENTS[name]} | {seeds} | {load} | {result['seconds']} s |"
        )
    return lines


def _page(key: str, names: list[str], results: Results) -> str:
    if key in COVERAGE:
        title = COVERAGE[key].title
        lines = [
            f"# {title}: our figures beside the paper's",
            "",
            f"What differs from the paper, and why: [{title}](../papers/{_page_of(key)}).",
            "",
            *_coverage(key, results),
        ]
    else:
        lines = [f"# {OTHERS[key]}", ""]
    for name in names:
        lines += _section(name, EXPERIMENTS[name], results[name])
    return _written(lines)


def _coverage(key: str, results: Results) -> list[str]:
    """Every table and figure of a paper, and where ours is."""
    paper = COVERAGE[key]
    lines = ["| the paper's | shows | ours | |", "|---|---|---|---|"]
    lines += [f"| {each.name} | {each.what} | {_where(each, results)} | {each.remark} |" for each in paper.shown]
    return [*lines, "", f"{paper.without} {paper.curves}", ""]


def _where(shown: Shown, results: Results) -> str:
    if not shown.experiments:
        return "absent"
    return "; ".join(_linked(name, results) for name in shown.experiments)


def _linked(name: str, results: Results, folder: str = "") -> str:
    """Where an experiment is, or why it is not; of one that is not at full size there may be a quick setting."""
    link = f"{folder}{_page_of(_paper(name))}#{name}"
    if name in results and not results[name]["quick"]:
        return f"[{name}]({link})"
    reason = NOT_KEPT.get(name, "not made yet")
    return f"`{name}`: {reason}" + (f" ([a quick setting]({link}))" if name in results else "")


def _section(name: str, shows: str, result: dict[str, Any]) -> list[str]:
    command = f"parley reproduce {name}{' --quick' if result['quick'] else ''}{'' if name in ALONE else ' --data DIR'}"
    made = [f"{result['seconds']} s on {result['cores']} cores"]
    if "load" in result:
        made.append(f"load {result['load']:g}")
    if "seeds" in result:
        made.append(f"seeds {', '.join(map(str, result['seeds']))}")
    if result.get("commit"):
        made.append(f"commit {result['commit']}")
    lines = [f"## {name}", "", f"{shows}. `{command}`: {', '.join(made)}."]
    if result["quick"]:
        lines += ["", "**A quick setting, smaller than the paper's: do not quote it.**"]
    if (FOLDER / f"{name}.png").exists():
        lines += ["", f"![{shows}]({name}.png)"]
    if name in JUDGEMENTS:
        lines += ["", JUDGEMENTS[name]]
    lines += ["", *tables(name, result["rows"])]
    if name in NOT_SHOWN:
        lines += [f"Every row as it was written: [{name}-rows.md]({name}-rows.md).", ""]
    return lines


def tables(name: str, rows: Sequence[Row]) -> list[str]:
    """An experiment's tables: its own layouts, and what they leave over as cases by metrics."""
    hidden = NOT_SHOWN.get(name)
    lines, rest = [], list(rows)
    for grid in (*GRIDS.get(name, ()), CASES):
        taken = [
            (row, found) for row in rest if (found := re.fullmatch(grid.pattern, f"{row['case']} · {row['metric']}"))
        ]
        rest = [row for row in rest if all(row is not other for other, _ in taken)]
        shown = [(row, match) for row, match in taken if hidden is None or not re.fullmatch(hidden, match.string)]
        lines += _grid(grid, shown)
    return lines


def _grid(grid: Grid, taken: Iterable[tuple[Row, re.Match[str]]]) -> list[str]:
    """A table for each title, a figure for each line and column; the better figures are bold."""
    found: dict[str, dict[str, dict[str, Row]]] = {}
    for row, match in taken:
        groups = {key: value for key, value in match.groupdict().items() if value is not None}
        groups = {key.removesuffix("_of_cap"): value for key, value in groups.items()}
        line, column = groups.get("line", row["case"]) + groups.get("form", ""), groups.get("column", row["metric"])
        title = grid.title.format(**{"title": "", "metric": row["metric"], **groups})
        found.setdefault(title, {}).setdefault(line, {})[column] = row
    lines: list[str] = []
    for title, cells in found.items():
        columns = _in_order(grid, dict.fromkeys(column for values in cells.values() for column in values))
        lines += [f"| {title} | {' | '.join(map(grid.head.format, columns))} |", "|---" * (len(columns) + 1) + "|"]
        if grid.paper_line:
            cells = {"*the paper*": _printed(cells, columns), **cells}
        best = {column: _best([v[column] for v in cells.values() if column in v]) for column in columns}
        for line, values in cells.items():
            shown = [_cell(values.get(column), best[column], grid) for column in columns]
            lines.append(f"| {line} | {' | '.join(shown)} |")
        lines.append("")
    return lines


def _printed(cells: Mapping[str, Mapping[str, Row]], columns: Iterable[str]) -> dict[str, Row]:
    """The paper's figures as a line of their own."""
    first = {column: next(values[column] for values in cells.values() if column in values) for column in columns}
    return {column: {**row, "ours": row["paper"], "sd": None} for column, row in first.items()}


def _in_order(grid: Grid, columns: Iterable[str]) -> list[str]:
    there = list(columns)
    known = [column for column in grid.columns if column in there]
    others = [column for column in there if column not in known]
    return known + (sorted(others, key=lambda c: float(re.sub(r"[^\d.]", "", c) or 0)) if grid.numbers else others)


def _best(rows: Sequence[Row]) -> float | None:
    """The best figure of several methods in one column; None where there is none to choose."""
    known = [row["ours"] for row in rows if row["ours"] is not None]
    better = _better({row["metric"] for row in rows})
    return None if better is None or len(known) < 2 or min(known) == max(known) else better(known)


def _better(metrics: Iterable[str]) -> Any:
    """Min, max, or None where neither is better, or where the metrics are several."""
    ways = {
        min
        if any(word in metric for word in LESS_IS_BETTER)
        else max
        if any(word in metric for word in MORE_IS_BETTER)
        else None
        for metric in metrics
    }
    return ways.pop() if len(ways) == 1 else None


def _cell(row: Row | None, best: float | None, grid: Grid) -> str:
    """Ours, and the paper's in brackets: of the two the better is bold, or the best of the column where it has none."""
    if row is None:
        return "–"
    ours, paper, better = row["ours"], None if grid.paper_line else row["paper"], _better({row["metric"]})
    shown = _figure(ours, row["metric"])
    shown += f" ± {row['sd']:.1g}" if (row.get("sd") or 0.0) > abs(ours or 0.0) * 10**-DIGITS else ""
    theirs = _figure(paper, row["metric"])
    if paper is None:
        return f"**{shown}**" if grid.bold and ours is not None and ours == best else shown
    if ours is None or better is None or ours == paper:
        return f"{shown} ({theirs})"
    return f"**{shown}** ({theirs})" if better((ours, paper)) == ours else f"{shown} (**{theirs}**)"


def _every_row(result: Mapping[str, Any]) -> list[str]:
    """A line for each row; with several seeds, the mean ± the standard deviation."""
    lines = ["| case | metric | ours | paper |", "|---|---|---|---|"]
    for row in result["rows"]:
        ours, paper = (_figure(row[whose], row["metric"]) for whose in ("ours", "paper"))
        ours += f" ± {row['sd']:.2g}" if row.get("sd") is not None else ""
        lines.append(f"| {row['case']} | {row['metric']} | {ours} | {paper} |")
    return lines


def _figure(value: float | None, metric: str) -> str:
    """Four digits; large numbers whole, bytes in MB."""
    if value is None or value != value:
        return "–"
    if metric == "bytes":
        return f"{value / 1e6:,.4g} MB"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.{DIGITS}g}"


def _paper(name: str) -> str:
    return next(key for key in (*COVERAGE, *OTHERS) if name.startswith(key))


def _page_of(key: str) -> str:
    return f"{PAGES.get(key, key)}.md"


def _written(lines: list[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def stored() -> Results:
    """The rows that are kept with the documentation."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


if __name__ == "__main__":
    for file, content in pages(stored()).items():
        (FOLDER.parent / file).write_text(content)
