"""`parley predict` and `parley parties`: what a trained federation answers."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.commands.options import Address, Coordinator, Identity, Json, dial
from parley.commands.refusals import REFUSED, Refused
from parley.display import console, print_json, print_table, show, table_of

if TYPE_CHECKING:
    from parley.client import Prediction

SHOWN_ROWS = 20


def predict(
    run: Annotated[str, typer.Argument(help="The run's id, or the name of a deployment.", metavar="RUN")],
    address: Address,
    identity: Identity,
    coordinator: Coordinator = "coordinator",
    table: Annotated[str, typer.Option(help="A table that every party holds; the training table if left out.")] = "",
    ids: Annotated[str, typer.Option(help="Rows to predict; all if left out.", metavar="A,B,…")] = "",
    ids_file: Annotated[
        Path | None, typer.Option(help="File with one id on each line.", exists=True, dir_okay=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a CSV file: id, prediction, score of each class.")] = None,
    json: Json = False,
) -> None:
    """Predict rows with the model that a run trained. Every party computes its share; no features are sent.

    Example: [bold]parley predict digits-1a2b3c4d --ids 17,42 --out predictions.csv[/bold]
    """
    if ids and ids_file is not None:
        raise typer.BadParameter("give either --ids or --ids-file")
    lines = ids_file.read_text().splitlines() if ids_file is not None else ids.split(",")
    wanted = [line.strip() for line in lines if line.strip()]
    if not wanted and (ids or ids_file is not None):
        raise Refused(f"{ids_file or '--ids'} names no rows: write one id on each line, or leave it out to predict all")
    with dial(address, identity, coordinator) as federation:
        rows = _rows(federation.predict(run, table, wanted or None))
    if out is not None:
        _write(out, rows)
        console.print(f"Wrote {len(rows)} predictions to {out}", soft_wrap=True)
    elif json:
        print_json(rows)
    elif rows:
        print_table(table_of([_brief(row) for row in rows[:SHOWN_ROWS]]))
        if len(rows) > SHOWN_ROWS:
            console.print(f"… and {len(rows) - SHOWN_ROWS} more rows; write all of them with --out predictions.csv")


def parties(address: Address, identity: Identity, coordinator: Coordinator = "coordinator", json: Json = False) -> None:
    """Call every party and show its state; exit code 1 if one cannot take part.

    Example: [bold]parley parties[/bold]
    """
    with dial(address, identity, coordinator) as federation:
        found = federation.parties()
    rows = [
        {
            "party": party.name,
            "address": party.address,
            "reachable": party.reachable,
            "version": party.version,
            "protocol": party.protocol,
            "tables": [(_offer if json else _summary)(table) for table in party.offers],
            "milliseconds": round(party.latency_milliseconds, 1),
            "problem": party.problem,
        }
        for party in found
    ]
    show(rows, as_json=json, empty="The coordinator's address book is empty: list parties in its configuration.")
    if any(party.problem or not party.reachable for party in found):
        raise typer.Exit(REFUSED)


def _offer(table: Any) -> dict[str, Any]:
    return {
        "name": table.name,
        "rows": table.rows,
        "features": table.features,
        "loaded_percent": table.loaded_percent,
        "problem": table.problem,
        "notice": table.notice,
    }


def _summary(table: Any) -> str:
    """A table in a few words."""
    if table.problem:
        return f"{table.name} (cannot be loaded)"
    if table.loaded_percent < 100:
        return f"{table.name} (loading, {table.loaded_percent} %)"
    return f"{table.name} ({table.rows} × {table.features})"


def _rows(prediction: "Prediction") -> list[dict[str, Any]]:
    """One row per id: the most probable class and the score of each, or the predicted number."""
    scores = prediction.scores
    if not prediction.classes:
        return [
            {"id": name, "prediction": float(score)} for name, score in zip(prediction.ids, scores[:, 0], strict=True)
        ]
    columns = prediction.classes if scores.shape[1] > 1 else prediction.classes[-1:]
    return [
        {"id": name, "prediction": label}
        | {f"score {column}": round(float(value), 6) for column, value in zip(columns, row, strict=True)}
        for name, label, row in zip(prediction.ids, prediction.labels, scores, strict=True)
    ]


def _brief(row: dict[str, Any]) -> dict[str, Any]:
    """A row that fits a terminal: the prediction and the highest score."""
    scores = [value for name, value in row.items() if name.startswith("score ")]
    best = {"score": f"{max(scores):.4f}"} if len(scores) > 1 else {name: row[name] for name in row if "score" in name}
    return {"id": row["id"], "prediction": row["prediction"], **best}


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else ["id", "prediction"])
        writer.writeheader()
        writer.writerows(rows)
