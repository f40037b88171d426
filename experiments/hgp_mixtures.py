"""hgp-mixtures: FedEM and HGP-MTL, which mix three models, in Table 2 of the HGP paper; `hgp-tables` has the others.

parley reproduce hgp-mixtures --data DIR [--quick] [--json FILE] [--plot FILE]      DIR has emnist
"""

from pathlib import Path

from parley.experiments.hgp_personalisation import Row
from parley.experiments.hgp_tables import MIXTURES, measured, plot

__all__ = ["plot", "run"]


def run(quick: bool, data: Path | None, seed: int = 0) -> list[Row]:
    """A row for each method, network and metric."""
    return measured(MIXTURES, quick=quick, data=data, seed=seed)
