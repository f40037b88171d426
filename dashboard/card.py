"""A model card of a run: what was trained, on what, how well, what crossed, and what privacy it cost."""

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import yaml

from parley.dashboard.crossings import crossings
from parley.dashboard.quality import quality
from parley.dashboard.views import CoefficientsView, EventView, LedgerView, PartyView, RunView
from parley.spec.events import TOTALS, RunData, RunParty, RunStateChange, RunWarning, measured, without_details

TEMPLATES = Path(__file__).parent / "templates"

_environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
)
STYLE = (TEMPLATES / "card.css").read_text()
STYLE_HASH = "sha256-" + base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
"""What a content security policy names to allow the card's own style and no other."""


def make_card(
    run: RunView,
    events: Sequence[EventView],
    ledger: LedgerView,
    parties: Sequence[PartyView],
    version: str,
    coefficients: Sequence[CoefficientsView] = (),
) -> dict[str, Any]:
    """The card as JSON-ready data. It holds no row, label or weight; tuned coefficients as parties shared them."""
    spec = yaml.safe_load(run.spec_yaml)
    newest = measured(None, run.metrics)
    known = {party.name: party for party in parties}
    return {
        "card": 2,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": {
            "run_id": run.run_id,
            "name": run.name,
            "algorithm": run.algorithm,
            "state": run.state,
            "reason": run.reason,
            "step": run.step,
            "steps": run.steps,
            "attempts": run.attempt,
            "created": run.created,
            "changed": run.changed,
        },
        "metrics": without_details(newest),
        "quality": quality(newest),
        "curves": _curves(events, without_details(newest)),
        "coefficients": [asdict(each) for each in coefficients],
        "data": _data(events),
        "privacy": {
            "protection": spec.get("privacy", {}),
            "epsilon": _number(ledger.epsilon),
            "pure_epsilon": _number(ledger.pure_epsilon),
            "delta": ledger.delta,
            "budget": ledger.budget,
            "releases": [{**asdict(release), "epsilon": _number(release.epsilon)} for release in ledger.releases],
            "ledger": {
                "entries": len(ledger.entries),
                "head": ledger.entries[-1].hash if ledger.entries else "",
                "chain": ledger.broken or "whole",
            },
        },
        "crossed": {
            "totals": {name: run.metrics[name] for name in TOTALS if name in run.metrics},
            "statements": [asdict(statement) for statement in crossings(run.spec_yaml)],
        },
        "parties": [{"name": name, "version": known[name].version if name in known else ""} for name in run.parties],
        "left_out": _left_out(events),
        "warnings": [event.body.sentence for event in events if isinstance(event.body, RunWarning)],
        "versions": {"parley": version},
        "spec": {"sha256": hashlib.sha256(run.spec_yaml.encode()).hexdigest(), "yaml": run.spec_yaml},
    }


def card_html(card: dict[str, Any]) -> str:
    """The card as one page without scripts or links to other files."""
    charts = [_Chart(name, points).svg() for name, points in card["curves"].items() if len(points) > 1]
    shapes = card.get("quality", {}).get("curves", {})  # a card of an older version has none
    shown = [_Chart(name, points, *AXES[name]).svg() for name, points in shapes.items()]
    page = _environment.get_template("card.html")
    return page.render(
        card=card, charts=charts, quality=card.get("quality", {}), shapes=shown, style=STYLE, text=_readable
    )


def _data(events: Sequence[EventView]) -> list[dict[str, Any]]:
    """What each party said about its table, newest attempt last."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        match event.body:
            case RunData(rows, party, columns, id_sha256) if party:
                found[party] = {"party": party, "rows": rows, "columns": columns, "id_sha256": id_sha256}
    return list(found.values())


def _left_out(events: Sequence[EventView]) -> list[dict[str, Any]]:
    """Parties that the last attempt went on without: they have no final model."""
    found: list[dict[str, Any]] = []
    for event in events:
        match event.body:
            case RunParty(party, "left") as left:
                found.append({"party": party, "round": left.round})
            case RunStateChange(attempt) if attempt:
                found.clear()
    return found


def _curves(events: Sequence[EventView], names: Any) -> dict[str, list[tuple[int, float]]]:
    curves: dict[str, dict[int, float]] = {name: {} for name in names}
    for event in events:
        for name, value in measured(event.body, event.metrics).items():
            if name in curves and math.isfinite(value):
                curves[name][event.step] = value
    return {name: sorted(points.items()) for name, points in curves.items()}


AXES = {
    "ROC": ("false positives", "true positives"),
    "precision and recall": ("recall", "precision"),
    "calibration": ("predicted", "observed"),
}
"""What the curves of held-out rows are over, and what of."""


class _Chart:
    """One metric over the steps, or one share over another, as an SVG."""

    WIDTH, HEIGHT, LEFT, BOTTOM = 320.0, 150.0, 44.0, 22.0

    def __init__(self, name: str, points: Sequence[tuple[float, float]], over: str = "step", of: str = "") -> None:
        self.name, self.points, self.over, self.of = name, sorted(points), over, of

    def svg(self) -> str:
        steps, values = zip(*self.points, strict=True)
        low, high = min(values), max(values)
        spread = (high - low) or 1.0
        width, height = self.WIDTH - self.LEFT - 8, self.HEIGHT - self.BOTTOM - 26

        def place(step: float, value: float) -> str:
            x = self.LEFT + width * (step - steps[0]) / ((steps[-1] - steps[0]) or 1)
            return f"{x:.1f},{26 + height * (high - value) / spread:.1f}"

        path = " ".join(place(*point) for point in self.points)
        return _environment.get_template("chart.svg").render(
            name=self.name,
            path=path,
            low=_readable(low),
            high=_readable(high),
            first=_readable(steps[0]),
            last=_readable(steps[-1]),
            over=self.over,
            of=self.of,
            width=self.WIDTH,
            height=self.HEIGHT,
            left=self.LEFT,
            bottom=26 + height,
        )


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else "infinite"


def _readable(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
