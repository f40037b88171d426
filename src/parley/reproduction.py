"""The papers' tables and figures, by name: `experiments.<name>` has `run(quick, data)` and `plot(rows, path)`."""

from pathlib import Path

from parley.modules import Rows, is_there, load

PACKAGE = "parley.experiments"

EXPERIMENTS = {
    "bambi-toy": "BAMBI: hyper-gradients and the decrease they reach, on problems with a known solution",
    "bambi-levels": "BAMBI: what the second level brings beside plain split learning, on the digits",
    "bambi-local": "BAMBI: local rounds with default settings, beside a single exchange",
    "bambi-mnist": "BAMBI: hyper-representation on MNIST, accuracy, rounds and bytes of each mode",
    "bambi-dp-mnist": "BAMBI: accuracy under label privacy on MNIST",
    "bambi-dp-attacks": "BAMBI: how well attacks guess labels from what crosses, against the cap",
    "asysqn-a9a": "AsySQN: rounds to a given precision on a9a, against first-order methods",
    "asysqn-straggler": "AsySQN: throughput where one party is slow",
    "hgp-error": "HGP: error of the hyper-gradient, by steps and by network",
    "hgp-influence": "HGP: influence of training samples, against retraining",
    "hgp-personalisation": "HGP: accuracy of personalised models, mean and bottom decile",
    "ldp-dsbo-synthetic": "LDP-DSBO: accuracy under local privacy, against MA-DSBO",
    "fedbio-quadratic": "FedBiO: distance to a known solution",
    "fedbio-cleaning": "FedBiO: data cleaning with wrong labels",
    "features-privacy": "Noise on rows (`privacy.features: once`): accuracy against ε on UCI credit and digits",
    "fedbio-omniglot": "FedBiO-Local: a representation of characters for few-shot tasks",
}
"""What each experiment shows."""


def offered() -> list[str]:
    """The experiments whose module is there."""
    return [name for name in EXPERIMENTS if is_there(PACKAGE, name)]


def reproduce(name: str, *, quick: bool, data: Path | None) -> Rows:
    """Run an experiment; its rows have case, metric, ours and paper."""
    rows: Rows = load(PACKAGE, name, offered()).run(quick, data)
    return [{key: row.get(key) for key in ("case", "metric", "ours", "paper")} for row in rows]


def draw(name: str, rows: Rows, path: Path) -> None:
    """Draw an experiment's rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    load(PACKAGE, name, offered()).plot(rows, path)
