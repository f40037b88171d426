"""bambi-local-mnist: local rounds on MNIST with the settings of a spec that says nothing, and under label privacy.

The federation, the rows and the model of `bambi-mnist`: four parties with a strip of each image, real processes, mutual
TLS, pairwise masks. One exchange, on all rows, is the control: parties train alone and their logits are added.

    parley reproduce bambi-local-mnist --data DIR [--quick] [--json FILE] [--plot FILE]
"""

from pathlib import Path
from typing import Any

from parley.experiments.bambi_local import EXACT, Row, local, plot, rows_of, trained
from parley.experiments.bambi_mnist import MODEL, PARTIES, mnist_federation

__all__ = ["plot", "run"]

SPLIT = {"lower": "0:50000", "upper": "lower", "test": "60000:70000"}
ALONE = {"exchanges": 1, "rows": 50000, "epochs": 10}
NOISY: dict[str, dict[str, Any]] = {
    "once ε=1": {"mechanism": "once", "epsilon": 1.0},
    "per_step ε₀=1": {"mechanism": "per_step", "epsilon": 1.0, "kind": "randomised_response"},
}


def run(quick: bool, data: Path | None = None, seed: int = 0) -> list[Row]:
    """Accuracy on the test rows and what it cost; `quick` leaves label privacy and the control out."""
    with mnist_federation(data) as client:

        def made(privacy: dict[str, Any], **settings: Any) -> Any:
            sections = {"split": SPLIT, "train": local(MODEL, **settings), "privacy": {"labels": privacy}}
            return trained(client, PARTIES, seed, **sections)

        rows = rows_of("MNIST", made(EXACT))
        if quick:
            return rows
        for case, privacy in NOISY.items():
            done = made(privacy)
            spent = {"case": case, "metric": "total epsilon", "ours": done.ledger().report.pure_epsilon, "paper": None}
            rows += [*rows_of(case, done), spent]
        return rows + rows_of("one exchange", made(EXACT, **ALONE))
