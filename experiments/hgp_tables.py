"""hgp-tables: Table 2 of the HGP paper in its own layout: four methods on four networks, mean and bottom decile.

Rows, model and training are those of `hgp_personalisation`, which says what is smaller than in the paper. The paper's
baselines that need a server (FedProx, FedAvg+, Clustered-FL, pFedMe, FedEM) are not made; their printed figures are
not repeated here.
"""

from dataclasses import replace
from pathlib import Path

from parley.experiments.hgp_personalisation import FULL, QUICK, MissingData, Row, load_emnist, plot, table
from parley.experiments.hgp_personalisation import split_parties as split

NETWORKS = ("FC", "FixU", "RandU", "RandD")


def run(quick: bool, data: Path | None, seed: int = 0) -> list[Row]:
    """A row for each method, network and metric."""
    if data is None:
        raise MissingData("hgp-tables needs EMNIST: give the folder that holds emnist/ with --data.")
    scale = replace(QUICK if quick else FULL, networks=NETWORKS)
    return table(split(*load_emnist(data), scale, seed=seed), scale, seed)


__all__ = ["plot", "run"]
