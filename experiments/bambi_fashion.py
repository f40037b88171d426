"""bambi-fashion: Fashion-MNIST by `implicit`, local rounds and one level, with the settings of a spec that is silent.

Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): 60 000 images to train on, both levels alike, and 10 000 that are held out;
each of three or five parties has a strip of every image and the network of `bambi-mnist`. Real processes, mutual TLS,
pairwise masks. `joint` is plain split learning of the same networks. `once` noises each label one time for all runs.

    parley reproduce bambi-fashion --data DIR [--quick] [--json FILE] [--plot FILE]      DIR has fashion-mnist
"""

from functools import partial
from pathlib import Path
from typing import Any

from parley.client import Federation
from parley.experiments.bambi_mnist import MODEL
from parley.experiments.vertical_services import (
    Row,
    figures,
    images_in,
    plot_accuracy,
    trained,
    vertical_services,
)
from parley.splitting import split_dataset

FOLDER = "fashion-mnist"
STRIPS = ("first", "second", "third", "fourth", "fifth")
MODES: dict[str, dict[str, Any]] = {
    "implicit": {"hypergradient": "implicit"},
    "local": {"hypergradient": "local"},
    "joint": {"problem": "joint"},
}
EPSILONS = (1.0, 3.0, 5.0)
NOISED_PARTIES = 3
"""How many parties label privacy is tried with."""
QUICK_ROWS = 10_000


class FashionMissing(FileNotFoundError):
    """The experiment was not told where Fashion-MNIST is."""


def run(quick: bool, data: Path | None = None, seed: int = 0) -> list[Row]:
    """Accuracy on the held-out images and bytes; `quick` takes 10 000 images, three parties and one ε."""
    folder = images_in(data, FOLDER)
    if folder is None:
        raise FashionMissing(f"say where Fashion-MNIST is: --data DIR, with the IDX files in DIR/{FOLDER}")
    rows: list[Row] = []
    epsilons = EPSILONS[:1] if quick else EPSILONS
    for count in (3,) if quick else (3, 5):
        parties = STRIPS[:count]
        with vertical_services(parties, partial(split_dataset, folder, parties)) as client:
            for mode, train in MODES.items():
                rows += _made(client, parties, f"{mode} l={count}", train, seed, quick)
            for epsilon in epsilons if count == NOISED_PARTIES else ():
                labels = {"mechanism": "once", "epsilon": epsilon}
                for mode in ("local", "joint"):
                    case = f"{mode} once eps={epsilon:g}"
                    rows += _made(client, parties, case, MODES[mode], seed, quick, labels)
    return rows


def _made(
    client: Federation,
    parties: tuple[str, ...],
    case: str,
    train: dict[str, Any],
    seed: int,
    quick: bool,
    labels: dict[str, Any] | None = None,
) -> list[Row]:
    split = {"lower": f"0:{QUICK_ROWS if quick else 60_000}", "upper": "lower", "test": "60000:70000"}
    noise = labels or {"mechanism": "off"}
    done = trained(client, parties, train | {"model": MODEL}, seed=seed, split=split, labels=noise)
    return figures(case, done, "accuracy", "MB", "rounds")


def plot(rows: list[Row], path: Path) -> None:
    """Accuracy of each case, and what crossed."""
    plot_accuracy(rows, path, "MB")
