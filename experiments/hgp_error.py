"""How far HGP's estimate is from the exact hyper-gradient (Figure 1a and 1b of the HGP paper).

Three parties, five coordinates, one regularisation coefficient per coordinate and party at 0.01, η = 1, random
directed networks with link probabilities in [0.4, 0.8]. The exact hyper-gradient comes from dense Hessians of the
pooled problem at its solution, which no party could compute. The paper shows curves and prints no numbers. Errors are
means over ten draws of the networks; S = 100 is one, in the form `reinit` on all rows, since it averages to rounding.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parley.experiments.hgp_parties import Mixing, hyper_gradients
from parley.experiments.synthetic_clients import synthetic_clients
from parley.numerics.bilevel_costs import BilevelCost, regularised_logistic
from parley.numerics.networks import NetworkKind, NetworkPlan
from parley.party.hgp.steps import Form, Hgp

Row = dict[str, Any]
Vector = NDArray[np.floating]

MARKS = (100, 200, 500)
PUSH_STEPS = (1, 2, 5, 10, 100)
BATCH = 20


def exact_solution(costs: list[BilevelCost], hypers: list[Vector]) -> tuple[Vector, Vector]:
    """Return x(λ) and d/dλ Σ_k f_k, all parties' λ one after the other, by Newton and dense autograd."""
    lams = [torch.as_tensor(hyper) for hyper in hypers]

    def inner(x: torch.Tensor) -> torch.Tensor:
        return sum((c.inner(x, h, None) for c, h in zip(costs, lams, strict=True)), torch.zeros(()))

    def outer(x: torch.Tensor) -> torch.Tensor:
        return sum((c.outer(x, h) for c, h in zip(costs, lams, strict=True)), torch.zeros(()))

    x = torch.zeros(costs[0].model_size, dtype=torch.float64)
    for _ in range(30):
        hessian = torch.autograd.functional.hessian(inner, x)
        x = x - torch.linalg.solve(hessian, torch.autograd.functional.jacobian(inner, x))
    adjoint = torch.linalg.solve(
        torch.autograd.functional.hessian(inner, x), torch.autograd.functional.jacobian(outer, x)
    )
    blocks = []
    for cost, lam in zip(costs, lams, strict=True):
        point, hyper = x.clone().requires_grad_(), lam.clone().requires_grad_()
        (slope,) = torch.autograd.grad(cost.inner(point, hyper, None), point, create_graph=True)
        (block,) = torch.autograd.grad(slope @ adjoint, hyper)
        blocks.append(-block)
    return x.numpy(), torch.cat(blocks).numpy()


def run(quick: bool, data: Path | None) -> list[Row]:  # noqa: ARG001 (the data are synthetic)
    """Return absolute and relative errors, means over networks; S = 100, which averages exactly on any, takes one."""
    costs = [
        regularised_logistic(c.features, c.labels, c.validation_features, c.validation_labels)
        for c in synthetic_clients(0)
    ]
    hypers = [np.full(5, 0.01) for _ in costs]
    solution, exact = exact_solution(costs, hypers)
    networks = range(2 if quick else 10)
    rows: list[Row] = []
    for form, batch_size in ((Form.REINIT, None), (Form.TRACK, None), (Form.REINIT, BATCH)):
        for push_steps in PUSH_STEPS:
            if push_steps == 100 and (form is Form.TRACK or batch_size is not None):
                continue  # a hundred steps average to rounding in both forms, and batches leave a floor far above
            errors: dict[int, list[float]] = {}
            for seed in networks if push_steps < 100 else range(1):

                def watch(m: int, v: list[Vector], errors: dict[int, list[float]] = errors) -> None:
                    errors.setdefault(m, []).append(float(np.linalg.norm(np.concatenate(v) - exact)))

                plan = NetworkPlan(NetworkKind.RANDOM_DIRECTED, size=3, seed=seed)
                settings = Hgp(max(MARKS), push_steps, 1.0, form, batch_size, seed=seed)
                hyper_gradients(costs, Mixing(plan), settings, [solution] * 3, hypers, marks=MARKS, watch=watch)
            for m in MARKS:
                case = f"S={push_steps}, M={m}" + _suffix(form, batch_size)
                error = float(np.mean(errors[m]))
                rows.append({"case": case, "metric": "error", "ours": error, "paper": None})
                relative = error / float(np.linalg.norm(exact))
                rows.append({"case": case, "metric": "relative error", "ours": relative, "paper": None})
            if quick and batch_size is not None and push_steps == 5:
                break  # the floor is reached; the paper leaves the larger S out as well
    return rows


def plot(rows: list[Row], path: Path) -> None:
    """Draw the relative error over M as in Figure 1a (all rows) and 1b (batches): a colour for each S."""
    from matplotlib.figure import Figure

    lines: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        if row["metric"] == "relative error":
            s, m, *rest = row["case"].split(", ")
            lines.setdefault((s, ", ".join(rest)), {})[int(m.removeprefix("M="))] = row["ours"]
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for (s, form), points in lines.items():
        axes, style = panels[int("batch" in form)], "--" if form == "track" else "-"
        colour = f"C{PUSH_STEPS.index(int(s.removeprefix('S=')))}"
        label = s if form != "track" else f"{s}, track"
        axes.semilogy(list(points), list(points.values()), style, color=colour, marker="o", label=label)
    for axes, title in zip(panels, ("all rows", f"batches of {BATCH}"), strict=True):
        axes.set(xlabel="rounds M", title=title, xticks=MARKS)
        axes.legend(fontsize=8, loc="lower left", ncols=2)
    panels[0].set_ylabel("relative error of the hyper-gradient")
    figure.savefig(path)


def _suffix(form: Form, batch_size: int | None) -> str:
    return (", track" if form is Form.TRACK else "") + ("" if batch_size is None else f", batch {batch_size}")
