"""The papers' tables and figures, by name: `experiments.<name>` has `run(quick, data)` and `plot(rows, path)`.

An experiment whose `run` also takes `seed` is made once for each seed, and its figures are means with their standard
deviation; one without it draws seeds of its own, or needs none. What is made once is a *part*. Parts are kept as they
end, so that hours of work outlive an interruption.
"""

import importlib.metadata
import inspect
import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parley.modules import Rows, is_there, load, write_rows

PACKAGE = "parley.experiments"
PARTS = "parts"
SEEDS = 3
"""Seeds of a full setting, unless told otherwise; a quick one takes one."""
COLUMNS = ("case", "metric", "ours", "paper")

EXPERIMENTS = {
    "bambi-toy": "BAMBI: hyper-gradients and the decrease they reach, on problems with a known solution",
    "local-rounds": "BAMBI: local rounds with default settings on digits, MNIST and a stress task, beside one exchange",
    "bilevel-pays": "BAMBI: what the second level brings where lower labels are wrong and upper rows are clean",
    "bambi-fashion": "BAMBI: Fashion-MNIST by `implicit`, local rounds and one level, with default settings",
    "bambi-sweep": "BAMBI: `implicit` and local rounds with default settings beside one level, on many tables",
    "bambi-mnist": "BAMBI: hyper-representation on MNIST, accuracy, rounds and bytes of each mode",
    "bambi-dp-mnist": "BAMBI: accuracy under label privacy on MNIST",
    "bambi-dp-attacks": "BAMBI: how well attacks guess labels from what crosses, against the cap",
    "bambi-news20": "BAMBI: regularisation of each party's words on 20 Newsgroups, from sparse tables (VFHO)",
    "asysqn-a9a": "AsySQN: rounds to a given precision on a9a, against first-order methods",
    "asysqn-straggler": "AsySQN: throughput where one party is slow",
    "asysqn-tables": "AsySQN: the paper's tables 3, 4 and 5, and speed-up in the number of parties",
    "hgp-error": "HGP: error of the hyper-gradient, by steps and by network",
    "hgp-influence": "HGP: influence of training samples, against retraining",
    "hgp-personalisation": "HGP: accuracy of personalised models, mean and bottom decile",
    "hgp-tables": "HGP: Table 2, methods with one model for each client, on four networks, mean and bottom decile",
    "hgp-mixtures": "HGP: Table 2, methods that mix three models, on four networks, mean and bottom decile",
    "ldp-dsbo-synthetic": "LDP-DSBO: accuracy under local privacy, against MA-DSBO",
    "ldp-dsbo-mnist": "LDP-DSBO: hyper-parameters of softmax regression on MNIST, by noise, network and heterogeneity",
    "fedbio-quadratic": "FedBiO: distance to a known solution",
    "fedbio-cleaning": "FedBiO: data cleaning with wrong labels",
    "fedbio-suspects": "FedBiO: data cleaning by default settings, beside the simplest ways to find wrong labels",
    "fedbio-figures": "FedBiO: figures 1 to 3 with a network of three layers, baselines, speed-up in clients",
    "credit": "Default of card holders: AUC of three organisations' models against pooled ones, and by label privacy",
    "fate-quality": "FATE's quality benchmark: glm against scikit-learn, and VertiBench's cuts of columns",
    "feature-privacy": "Noise on rows and in sums (`privacy.features`): accuracy and column attacks against ε",
    "fedbio-omniglot": "FedBiO-Local: a representation of characters for few-shot tasks",
}
"""What each experiment shows."""


class PartsDiffer(ValueError):
    """A folder has parts of another setting, which cannot be gone on with."""


@dataclass(frozen=True)
class Part:
    """One experiment at one seed."""

    name: str
    seed: int | None
    """None where the experiment draws its own."""

    @property
    def file(self) -> str:
        """Its file below the folder of parts."""
        return f"{self.name}.json" if self.seed is None else f"{self.name}.seed-{self.seed}.json"

    def __str__(self) -> str:
        return self.name if self.seed is None else f"{self.name}, seed {self.seed}"


@dataclass(frozen=True)
class Made:
    """A part that was made, and how."""

    part: Part
    rows: Rows
    circumstances: dict[str, Any]
    """quick, seconds, cores, load, version and commit."""


def offered() -> list[str]:
    """The experiments whose module is there."""
    return [name for name in EXPERIMENTS if is_there(PACKAGE, name)]


def parts_of(name: str, seeds: int) -> list[Part]:
    """The parts of an experiment."""
    takes_seed = "seed" in inspect.signature(load(PACKAGE, name, offered()).run).parameters
    return [Part(name, seed) for seed in range(seeds)] if takes_seed else [Part(name, None)]


def make(part: Part, *, quick: bool, data: Path | None) -> Made:
    """Run a part; its rows have case, metric, ours and paper."""
    seeded = {} if part.seed is None else {"seed": part.seed}
    started = time.monotonic()
    rows: Rows = load(PACKAGE, part.name, offered()).run(quick, data, **seeded)
    circumstances = {
        "quick": quick,
        "seconds": round(time.monotonic() - started),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[1], 1),
        "version": importlib.metadata.version("parley-fl"),
        "commit": _commit(),
    }
    return Made(part, [{key: row.get(key) for key in COLUMNS} for row in rows], circumstances)


def keep(made: Made, folder: Path) -> None:
    """Write a part, whole or not at all."""
    path = folder / PARTS / made.part.file
    unfinished = path.with_suffix(".unfinished")
    write_rows(unfinished, made.part.name, made.rows, seed=made.part.seed, **made.circumstances)
    unfinished.replace(path)


def kept(part: Part, folder: Path, *, quick: bool) -> Made | None:
    """A part that was made before.

    Raises:
        PartsDiffer: it is of the other setting (quick or full).
    """
    path = folder / PARTS / part.file
    if not path.exists():
        return None
    content = json.loads(path.read_text())
    if content["quick"] != quick:
        raise PartsDiffer(
            f"{path} is of the {'quick' if content['quick'] else 'full'} setting: name another folder with --out"
        )
    rows = content.pop("rows")
    return Made(part, rows, {key: content[key] for key in content if key not in ("name", "seed")})


def joined(parts: Iterable[Made]) -> tuple[Rows, dict[str, Any]]:
    """The rows of an experiment as means over its seeds, with `sd` where there are several, and how they were made."""
    made = list(parts)
    values: dict[tuple[str, str], list[float]] = {}
    papers: dict[tuple[str, str], Any] = {}
    for row in (row for one in made for row in one.rows):
        key = row["case"], row["metric"]
        papers[key] = row["paper"]
        values.setdefault(key, []).append(float("nan") if row["ours"] is None else row["ours"])
    rows: Rows = []
    for (case, metric), found in values.items():
        row = {"case": case, "metric": metric, "ours": statistics.fmean(found), "paper": papers[case, metric]}
        rows.append(row | ({"sd": statistics.stdev(found)} if len(found) > 1 else {}))
    together = dict(made[-1].circumstances)
    together["seconds"] = sum(one.circumstances["seconds"] for one in made)
    together["load"] = max(one.circumstances["load"] for one in made)
    seeds = [one.part.seed for one in made if one.part.seed is not None]
    return rows, together | ({"seeds": seeds} if seeds else {})


def expected_seconds(parts: Iterable[Part], folder: Path | None) -> Iterator[tuple[Part, float | None]]:
    """How long each part took when it was last made, or another seed of it; None where nobody knows."""
    for part in parts:
        files = [] if folder is None else [*(folder / PARTS).glob(f"{part.name}*.json"), folder / f"{part.name}.json"]
        known = [json.loads(path.read_text())["seconds"] for path in files if path.exists()]
        yield part, float(known[0]) if known else None


def draw(name: str, rows: Rows, path: Path) -> None:
    """Draw an experiment's rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    load(PACKAGE, name, offered()).plot(rows, path)


def _commit() -> str | None:
    """The commit of the clone that runs, if it is one; with a plus sign where files differ from it."""
    git = ("git", "-C", str(Path(__file__).parent))
    try:
        commit = subprocess.run(  # noqa: S603 (fixed words)
            (*git, "rev-parse", "--short=12", "HEAD"), capture_output=True, check=True, text=True
        )
        changed = subprocess.run((*git, "diff", "--quiet", "HEAD"), capture_output=True, check=False)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("+" if changed.returncode else "")
