"""What data cleaning leaves with a party: its rows ranked by weight, and a picture. Nothing here is ever sent."""

import csv
import io
from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from parley.numerics.storm import Vector
from parley.party.fedbio.objectives import Rows, suspects

COLUMNS = ("rank", "id", "weight", "label", "model says")


def ranked_rows(ids: Sequence[str], x: Vector, labels: Rows, predicted: Rows, classes: Sequence[str]) -> bytes:
    """CSV of a party's training rows, most suspicious first: the smaller the weight, the less the label is believed."""
    weights = expit(x)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for rank, row in enumerate(suspects(x), start=1):
        weight = np.format_float_scientific(weights[row], precision=6)
        writer.writerow((rank, ids[row], weight, classes[labels[row]], classes[predicted[row]]))
    return text.getvalue().encode()


def weights_picture(x: Vector, labels: Rows, predicted: Rows) -> bytes:
    """PNG: how the weights are spread, for rows whose label the model confirms and for those where it disagrees."""
    from matplotlib.figure import Figure

    weights, agrees = expit(x), labels == predicted
    figure = Figure(figsize=(8, 4), layout="constrained")
    spread, ranks = figure.subplots(1, 2)
    parts = [weights[agrees], weights[~agrees]]
    spread.hist(parts, bins=40, range=(0, 1), stacked=True, label=["model agrees", "model disagrees"])
    spread.set(xlabel="weight of a row", ylabel="rows")
    spread.legend()
    ranks.plot(np.sort(weights))
    ranks.set(xlabel="rows, most suspicious first", ylabel="weight", ylim=(0, 1))
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120, metadata={"Software": None})
    return picture.getvalue()
