"""`parley contribution`: what each party, and each column, brings to a run."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.commands.options import AddressIfAny, Coordinator, IdentityIfAny, Json, RunId, dial
from parley.commands.refusals import Refused
from parley.display import errors, print_json, show

if TYPE_CHECKING:
    from parley.client import Run
    from parley.contribution import Coalition, Contributions


def contribution(
    run: RunId,
    address: AddressIfAny = None,
    identity: IdentityIfAny = None,
    coordinator: Coordinator = "coordinator",
    metric: Annotated[str | None, typer.Option(help="Figure of held-out rows, such as 'test auc'.")] = None,
    nothing: Annotated[
        float | None, typer.Option(help="What a model without columns scores; known for auc, ks and r2.")
    ] = None,
    leave_one_out: Annotated[
        bool, typer.Option("--leave-one-out", help="Only runs without one party each; no Shapley values.")
    ] = False,
    lower_only: Annotated[
        bool, typer.Option("--lower-only", help="Refit the linear lower problem, and leave the upper level out.")
    ] = False,
    columns: Annotated[
        bool, typer.Option("--columns", help="Columns instead of parties, from what the run has shared; no new run.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            help="At a party: mean |SHAP| of its own columns in a linear model, read where they lie.",
            metavar="PARTY.YAML",
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw bars into this file (.png, .svg, .pdf).")] = None,
    json: Json = False,
) -> None:
    """Tell what each party brings to a run: leave-one-out, Shapley value, and what it gains by joining.

    Every coalition of parties is a run of its own, which each party's policy must allow (`differencing: allow`,
    `minimum_parties` as small as the coalition, `plain` for one party): such runs tell the coordinator one party's
    part of each score.
    Asked again, it goes on where it was.

    Example: [bold]parley contribution credit-1a2b3c4d --plot shares.png[/bold]
    """
    if address is None or identity is None:
        raise typer.BadParameter("say whom to ask: --address and --identity")
    from parley.contribution import NotMeasurable, measure

    with dial(address, identity, coordinator) as federation:
        known = federation.run(run)
        try:
            if config is not None:
                from parley.linear_shap import own_columns

                _tell(own_columns(known, config, coordinator), json, plot, "mean |SHAP|")
                return
            if columns:
                _tell(_columns(known), json, plot, "")
                return
            found = measure(
                federation,
                known,
                metric=metric,
                nothing=nothing,
                leave_one_out=leave_one_out,
                lower_only=lower_only,
                told=_progress(quiet=json),
            )
        except NotMeasurable as error:
            raise Refused(str(error)) from None
    _show(found, json, plot)


def _columns(run: "Run") -> list[dict[str, Any]]:
    from parley.contribution import column_rows

    penalties = "problem: hyper_parameters" in run.refresh().message.spec_yaml
    rows = column_rows(run.coefficients(), penalties=penalties)
    if not rows:
        raise Refused(
            "no party shares coefficients of its columns (`coefficients: columns` in its policy), or the run has none: "
            "they belong to `algorithm: glm`, and to `problem: hyper_parameters` with `coefficients: feature`"
        )
    return rows


def _progress(*, quiet: bool) -> Any:
    """A line for each coalition, with the time that is left."""
    import time

    started = time.monotonic()

    def told(one: "Coalition", done: int, total: int) -> None:
        if quiet:
            return
        left = (time.monotonic() - started) / done * (total - done)
        value = f"{one.value:.4f}" if one.value is not None else "refused"
        errors.print(f"{done} of {total}  {' + '.join(one.members)}  {value}  {left:.0f} s left", highlight=False)

    return told


def _show(found: "Contributions", as_json: bool, plot: Path | None) -> None:
    if plot is not None:
        shown = "shapley" if found.shares[0].shapley is not None else "leave_one_out"
        draw({share.party: getattr(share, shown) for share in found.shares}, f"{shown} of {found.metric}", plot)
    if as_json:
        print_json(asdict(found))
        return
    title = f"{found.metric} of {found.run_id}: {found.together:.4f} together"
    show([asdict(share) for share in found.shares], as_json=False, title=title)
    for one in found.coalitions:
        if one.refused:
            typer.echo(f"{' + '.join(one.members)}: {one.refused}")


def _tell(rows: list[dict[str, Any]], as_json: bool, plot: Path | None, name: str) -> None:
    if plot is not None:
        figure = name or list(rows[0])[-1]
        draw({str(row["column"]): float(row[figure]) for row in rows}, figure, plot)
    show(rows, as_json=as_json, title="Columns")


def draw(values: dict[str, float | None], title: str, path: Path) -> None:
    """Bars, the largest first."""
    from matplotlib.figure import Figure

    known = sorted(((value, name) for name, value in values.items() if value is not None), reverse=False)
    figure = Figure(figsize=(6, 0.8 + 0.4 * max(1, len(known))), layout="constrained")
    axes = figure.subplots()
    axes.barh([name for _, name in known], [value for value, _ in known])
    axes.set_title(title)
    axes.axvline(0, color="black", linewidth=0.8)
    figure.savefig(path)
