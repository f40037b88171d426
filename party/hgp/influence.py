"""What a run on the influence of rows leaves with a party: its own rows, ranked, and a picture. Nothing is sent."""

import csv
import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

COLUMNS = ("rank", "id", "change without it", "label")


def influences(v: NDArray[np.floating]) -> NDArray[np.float64]:
    """Predict how the total validation loss changes without each row: λ_k falls from 1 to 0, hence −v_k."""
    return -np.asarray(v, dtype=np.float64)


def ranked_rows(
    ids: Sequence[str], v: NDArray[np.floating], labels: NDArray[np.integer], classes: Sequence[str]
) -> bytes:
    """CSV of a party's training rows, largest influence first; a negative change means that the row does harm."""
    change = influences(v)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for rank, row in enumerate(np.argsort(-np.abs(change), kind="stable"), start=1):
        value = np.format_float_scientific(change[row], precision=6)
        writer.writerow((rank, ids[row], value, classes[labels[row]]))
    return text.getvalue().encode()


def picture(v: NDArray[np.floating]) -> bytes:
    """PNG: the party's rows in the order of their influence."""
    from matplotlib.figure import Figure

    change = np.sort(influences(v))
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    axes.bar(np.arange(len(change)), change, width=1.0, color=np.where(change < 0, "tab:red", "tab:blue").tolist())
    axes.set(xlabel="own training rows", ylabel="change of the total validation loss without the row")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120, metadata={"Software": None})
    return drawn.getvalue()
