"""Start a run from Python, follow it and predict.

    python examples/train_and_predict.py examples/digits-vfhrl.yaml

Reads PARLEY_ADDRESS (host:port of the coordinator) and PARLEY_IDENTITY (folder with a client certificate).
"""

import os
import sys
from pathlib import Path

import parley


def main(spec: Path) -> None:
    """Train `spec` and print the first predictions."""
    with parley.connect(os.environ["PARLEY_ADDRESS"], os.environ["PARLEY_IDENTITY"]) as federation:
        run = federation.start(spec)
        for event in run.watch():
            measured = ", ".join(f"{metric.name} {metric.value:.4g}" for metric in event.metrics)
            sys.stdout.write(f"{event.kind}: {event.message} {measured}\n")
        metrics = run.result()
        ledger = run.ledger()
        prediction = run.predict(ids=["17", "42"])
    sys.stdout.write(f"accuracy {metrics['test accuracy']:.4f} at ε = {ledger.report.pure_epsilon:g}\n")
    for row, label in zip(prediction.ids, prediction.labels, strict=True):
        sys.stdout.write(f"row {row} looks like {label}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
