"""A run where people look at it: a live bar in a notebook or terminal, its curves, and a card for a cell."""

import html
from typing import TYPE_CHECKING, Any

from parley.client import RequestRefused, Run
from parley.services.wire.event_codec import body_of, decode_metrics
from parley.spec.events import measured, without_details

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def follow(run: Run) -> dict[str, float]:
    """Show the run while it goes on, and return its metrics."""
    from rich.console import Console

    from parley.progress import Follower

    for _ in Follower(run, Console()).follow():
        pass
    if run.state != "COMPLETED":
        raise RequestRefused(run.state, run.reason or f"the run is {run.state}")
    return run.metrics


def plot(run: Run) -> "Figure":
    """The curves of what was measured so far, one panel for losses and one for everything else."""
    from matplotlib.figure import Figure

    curves: dict[str, tuple[list[int], list[float]]] = {}
    for event in run.events():
        for name, value in without_details(measured(body_of(event), decode_metrics(event.metrics))).items():
            steps, values = curves.setdefault(name, ([], []))
            steps.append(event.step)
            values.append(value)
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    losses, others = figure.subplots(1, 2)
    for name, (steps, values) in curves.items():
        axes = losses if name.endswith(("loss", "brier score")) else others
        axes.plot(steps, values, marker="o", markersize=3, label=name)
    for axes, title in ((losses, "Loss"), (others, "Quality")):
        axes.set(title=title, xlabel="upper iteration")
        axes.grid(visible=True, alpha=0.3)
        if axes.lines:
            axes.legend(frameon=False)
    figure.suptitle(f"{run.message.name}: {run.state.lower()}, step {run.step} of {run.steps}")
    return figure


def card(run: Run) -> str:
    """The run as a small table in HTML."""
    facts: dict[str, Any] = {"state": f"{run.state}, step {run.step} of {run.steps}"}
    if run.reason:
        facts["reason"] = run.reason
    facts |= {name: f"{value:.6g}" for name, value in without_details(run.metrics).items()}
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(fact))}</td></tr>" for name, fact in facts.items()
    )
    return f"<table><caption>{html.escape(run.run_id)}</caption>{rows}</table>"
