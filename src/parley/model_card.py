"""A run's model card, from what the coordinator tells a client."""

import json
from dataclasses import asdict
from typing import Any

from parley.client import Federation, Run
from parley.dashboard.card import card_html, make_card
from parley.dashboard.views import CoefficientsView, EntryView, EventView, LedgerView, PartyView, ReleaseView, RunView
from parley.display import finite
from parley.services.wire.event_codec import body_of, decode_metrics
from parley.services.wire.version import VERSION

__all__ = ["card_html", "model_card"]


def model_card(federation: Federation, run: Run) -> dict[str, Any]:
    """The card of a run that has ended, as JSON-ready data: spec, data digests, metrics, privacy, what crossed."""
    events = [
        EventView(
            event.sequence,
            event.time,
            event.kind,
            event.message,
            event.step,
            decode_metrics(event.metrics),
            body_of(event),
        )
        for event in run.watch()
    ]
    parties = [
        PartyView(
            party.name,
            party.address,
            party.reachable,
            party.version,
            party.problem,
            [],
            party.latency_milliseconds,
        )
        for party in federation.parties()
    ]
    tuned = [CoefficientsView(party, **asdict(found)) for party, found in run.coefficients().items()]
    card: dict[str, Any] = finite(make_card(_run(run), events, _ledger(run), parties, VERSION, tuned))
    return card


def _run(run: Run) -> RunView:
    message = run.message
    return RunView(
        run_id=run.run_id,
        name=message.name,
        algorithm=message.algorithm,
        state=run.state,
        reason=run.reason,
        step=run.step,
        steps=run.steps,
        parties=list(message.parties),
        metrics=run.metrics,
        created=message.created,
        changed=message.changed,
        attempt=message.attempt,
        spec_yaml=message.spec_yaml,
    )


def _ledger(run: Run) -> LedgerView:
    ledger = run.ledger()
    entries = [
        EntryView(
            entry.sequence,
            entry.time,
            entry.kind,
            entry.mechanism,
            json.loads(entry.recipients),
            entry.releases,
            entry.records,
            entry.epsilon,
            entry.hash,
        )
        for entry in ledger.entries
    ]
    report = ledger.report
    recipients = sorted({name for entry in entries for name in entry.recipients})
    releases = [
        ReleaseView(
            mechanism=_mechanism(report.mechanism),
            releases=sum(entry.releases for entry in entries),
            largest_count=report.largest_count,
            epsilon=report.pure_epsilon,
            recipients=recipients,
        )
    ]
    return LedgerView(
        entries,
        releases if entries else (),
        epsilon=report.pld_epsilon,
        pure_epsilon=report.pure_epsilon,
        delta=report.delta,
        budget=report.budget or None,
        broken=ledger.broken,
    )


def _mechanism(text: str) -> str:
    fields = json.loads(text) if text else {"kind": "none"}
    return ", ".join([fields.pop("kind").replace("_", " "), *(f"{name} {value}" for name, value in fields.items())])
