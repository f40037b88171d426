"""The papers' tables and figures beside ours, from the rows that `parley reproduce` wrote.

parley reproduce all --out docs/results --data DIR --resume      hours; or one name at a time
python docs/results.py                                           writes docs/results.md and docs/results/<paper>.md
"""

import json
from pathlib import Path
from typing import Any

from parley.reproduction import EXPERIMENTS

FOLDER = Path(__file__).parent / "results"
PAPERS = {"bambi": "BAMBI", "asysqn": "AsySQN", "hgp": "HGP", "ldp": "LDP-DSBO", "fedbio": "FedBiO"}
PAGES = {"ldp": "ldp_dsbo"}
OTHERS = {"features": "Noise on rows", "credit": "Default of card holders", "fate": "FATE's quality benchmark"}
ALONE = ("bambi-toy", "bambi-levels", "bambi-local", "fedbio-quadratic", "hgp-error", "ldp-dsbo-synthetic")
"""Experiments that need no data."""
LONGEST = 60
"""Rows of a table that people read; a longer one has a file of its own."""

Results = dict[str, dict[str, Any]]


def pages(results: Results) -> dict[str, str]:
    """Every page by its file name below docs: the index, a page for each paper, and long tables of their own."""
    made = {"results.md": _index(results)}
    for key in (*PAPERS, *OTHERS):
        names = [name for name in EXPERIMENTS if name.startswith(key) and name in results]
        if not names:
            continue
        made[f"results/{PAGES.get(key, key)}.md"] = _page(key, names, results)
        for name in names:
            if len(results[name]["rows"]) > LONGEST:
                made[f"results/{name}-rows.md"] = _written([f"# {name}: every row", "", *_table(results[name]["rows"])])
    return made


def _index(results: Results) -> str:
    lines = [
        "# Results",
        "",
        "Our figures beside those of the papers, made by `parley reproduce`, written by `python docs/results.py`. A",
        "dash in *paper* means that the paper prints no such figure. Where a claim of a paper does not hold, the page",
        "on its algorithm says so. **A quick setting is smaller than the paper's and shows that the experiment runs;",
        "do not quote it.**",
        "",
        "| experiment | shows | setting | seeds | made in |",
        "|---|---|---|---|---|",
    ]
    for name, shows in EXPERIMENTS.items():
        if name not in results:
            continue
        result, key = results[name], _paper(name)
        setting = "quick" if result["quick"] else "full"
        seeds = str(len(result["seeds"])) if "seeds" in result else "–"
        link = f"[{name}](results/{PAGES.get(key, key)}.md#{name})"
        lines.append(f"| {link} | {shows} | {setting} | {seeds} | {result['seconds']} s |")
    missing = [name for name in EXPERIMENTS if name not in results]
    if missing:
        lines += ["", f"Not yet kept here: {', '.join(f'`{name}`' for name in missing)}."]
    return _written(lines)


def _page(key: str, names: list[str], results: Results) -> str:
    title = PAPERS.get(key) or OTHERS[key]
    lines = [f"# {title}: our figures beside the paper's" if key in PAPERS else f"# {title}", ""]
    if key in PAPERS:
        lines += [f"What differs from the paper, and why: [{title}](../papers/{PAGES.get(key, key)}.md).", ""]
    for name in names:
        lines += _section(name, EXPERIMENTS[name], results[name])
    return _written(lines)


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
    if (FOLDER / f"{name}.png").exists():
        lines += ["", f"![{shows}]({name}.png)"]
    if len(result["rows"]) > LONGEST:
        return [*lines, "", f"All {len(result['rows'])} rows are in [a file of their own]({name}-rows.md).", ""]
    return [*lines, "", *_table(result["rows"]), ""]


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each row; with several seeds, the mean ± the standard deviation."""
    lines = ["| case | metric | ours | paper |", "|---|---|---|---|"]
    for row in rows:
        ours = _figure(row["ours"]) + (f" ± {row['sd']:.2g}" if row.get("sd") is not None else "")
        lines.append(f"| {row['case']} | {row['metric']} | {ours} | {_figure(row['paper'])} |")
    return lines


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.5g}"


def _paper(name: str) -> str:
    return next(key for key in (*PAPERS, *OTHERS) if name.startswith(key))


def _written(lines: list[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def stored() -> Results:
    """The rows that are kept with the documentation."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


if __name__ == "__main__":
    for file, content in pages(stored()).items():
        (FOLDER.parent / file).write_text(content)
