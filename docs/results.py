"""The papers' tables and figures beside ours, from the rows that `parley reproduce` wrote.

parley reproduce all --out docs/results --data DIR      hours; or one name at a time
python docs/results.py                                  writes docs/results.md
"""

import json
from pathlib import Path
from typing import Any

from parley.reproduction import EXPERIMENTS

FOLDER = Path(__file__).parent / "results"
PAPERS = {"bambi": "BAMBI", "asysqn": "AsySQN", "hgp": "HGP", "ldp": "LDP-DSBO", "fedbio": "FedBiO"}
PAGES = {"ldp": "ldp_dsbo"}


def page(results: dict[str, dict[str, Any]]) -> str:
    """The page for results by name."""
    lines = [
        "# Results",
        "",
        "Written by `python docs/results.py` from rows in `docs/results`, made by the command above each table. A dash",
        "in *paper* means that the paper prints no such figure. Where a claim of a paper does not hold, its page",
        "says so: " + ", ".join(f"[{PAPERS[key]}](papers/{PAGES.get(key, key)}.md)" for key in PAPERS) + ".",
        "",
    ]
    for name, shows in EXPERIMENTS.items():
        if name in results:
            lines += _section(name, shows, results[name])
    return "\n".join(lines).rstrip() + "\n"


def _section(name: str, shows: str, result: dict[str, Any]) -> list[str]:
    quick = " --quick" if result["quick"] else ""
    alone = ("bambi-toy", "bambi-levels", "fedbio-quadratic", "hgp-error", "ldp-dsbo-synthetic")
    data = "" if name in alone else " --data DIR"
    lines = [f"## {name}", "", f"{shows}. `parley reproduce {name}{quick}{data}`: {result['seconds']} s on"]
    lines[-1] += f" {result['cores']} cores."
    if (FOLDER / f"{name}.png").exists():
        lines += ["", f"![{shows}](results/{name}.png)"]
    lines += ["", "| case | metric | ours | paper |", "|---|---|---|---|"]
    lines += [
        f"| {row['case']} | {row['metric']} | {_figure(row['ours'])} | {_figure(row['paper'])} |"
        for row in result["rows"]
    ]
    return [*lines, ""]


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.5g}"


def stored() -> dict[str, dict[str, Any]]:
    """The rows that are kept with the documentation."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


if __name__ == "__main__":
    FOLDER.with_suffix(".md").write_text(page(stored()))
