"""`parley tune`: choose fields of a spec by how its runs do."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from parley.commands.options import Address, Coordinator, Identity, Json, dial
from parley.commands.refusals import Refused
from parley.display import errors, print_json, show

if TYPE_CHECKING:
    from parley.tuning import Choice, Trial, Tuned

By = Literal["auto", "gradient", "search"]


def tune(
    spec: Annotated[Path, typer.Argument(help="The run's spec.", metavar="SPEC.YAML", exists=True, dir_okay=False)],
    address: Address,
    identity: Identity,
    over: Annotated[
        list[str],
        typer.Option(help="A field and where to search: FIELD=LOW..HIGH, FIELD=LOW..HIGH:log or FIELD=A,B,C."),
    ],
    coordinator: Coordinator = "coordinator",
    trials: Annotated[int, typer.Option(help="Most runs of a search.", min=1)] = 20,
    metric: Annotated[str | None, typer.Option(help="What is compared; `validation loss` if left out.")] = None,
    by: Annotated[
        str, typer.Option(help="`gradient` (one bilevel run), `search` (a run for each trial), or `auto`.")
    ] = "auto",
    budget: Annotated[float | None, typer.Option(help="Most ε that all trials together spend on a label.")] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after so many trials without a better one.", min=1)] = None,
    study: Annotated[
        Path | None, typer.Option(help="File that keeps the trials; beside the spec if left out.", metavar="FILE")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the spec with the best values here.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search.", min=0)] = 0,
    json: Json = False,
) -> None:
    """Tune fields of a spec: by the hyper-gradient where one run gives it, else by a search with Optuna.

    All trials share one budget for the labels; noise that is drawn once is paid for once. A search that was interrupted
    goes on where it was.

    Example: [bold]parley tune credit.yaml --over train.regularisation=0.0001..1:log --trials 20[/bold]
    """
    from parley.tuning import BudgetSpent, NotTunable, choice_of, is_differentiable

    text = spec.read_text()
    try:
        choices = [choice_of(each) for each in over]
        if by not in ("auto", "gradient", "search"):
            raise NotTunable("--by is auto, gradient or search")
        differentiable = is_differentiable(text, choices)
        if by == "gradient" and not differentiable:
            raise NotTunable(
                "one bilevel run tunes a range of train.regularisation of a linear lower problem (`problem: "
                "hyper_parameters`, or `model: {kind: identity}`), and nothing else: take --by search"
            )
        with dial(address, identity, coordinator) as federation:
            if differentiable and by != "search":
                _by_gradient(federation, text, choices[0], json)
                return
            found = _by_search(federation, text, choices, trials, metric, study or spec.with_suffix(".tune.db"),
                               budget, patience, seed, quiet=json)  # fmt: skip
    except (NotTunable, BudgetSpent) as error:
        raise Refused(str(error)) from None
    except ModuleNotFoundError as missing:
        if missing.name != "optuna":
            raise
        raise Refused("a search needs Optuna: pip install 'parley-fl[tune]'") from None
    _show(found, text, out, json)


def _by_gradient(federation: Any, text: str, choice: "Choice", as_json: bool) -> None:
    from parley.commands.coefficients import coefficient_rows, show_coefficients
    from parley.progress import Follower
    from parley.tuning import gradient_spec

    run = federation.start(gradient_spec(text, choice))
    for _ in Follower(run, errors).follow():
        pass
    if run.state != "COMPLETED":
        raise Refused(run.reason or f"the run is {run.state}")
    rows = coefficient_rows(run.coefficients())
    if as_json:
        print_json({"run": run.run_id, "metrics": run.metrics, "coefficients": rows})
        return
    typer.echo(f"{run.run_id}: tuned by its hyper-gradient in one run")
    show_coefficients(rows)


def _by_search(
    federation: Any,
    text: str,
    choices: "list[Choice]",
    trials: int,
    metric: str | None,
    study: Path,
    budget: float | None,
    patience: int | None,
    seed: int,
    *,
    quiet: bool,
) -> "Tuned":
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from parley.tuning import search

    bar = Progress(
        TextColumn("[bold]tuning"),
        BarColumn(bar_width=24),
        TextColumn("trial {task.completed:.0f} of {task.total:.0f}  {task.fields[facts]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(compact=True),
        console=errors,
        disable=quiet or not errors.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=trials, facts="")

        def told(trial: "Trial", so_far: "Tuned") -> None:
            best = "" if so_far.best is None else f"best {so_far.best.score:.4f}  ε {so_far.epsilon:g}"
            bar.update(task, completed=len(so_far.trials), facts=best)
            if not quiet and not errors.is_terminal:
                score = trial.outcome if trial.score is None else f"{trial.score:.4f}"
                errors.print(f"{len(so_far.trials)} of {trials}  {trial.values}  {score}  {best}", highlight=False)

        return search(
            federation,
            text,
            choices,
            trials=trials,
            metric=metric,
            study=study,
            budget=budget,
            patience=patience,
            seed=seed,
            told=told,
        )


def _show(found: "Tuned", text: str, out: Path | None, as_json: bool) -> None:
    from parley.tuning import with_values

    if out is not None and found.best is not None:
        out.write_text(with_values(text, found.best.values))
    if as_json:
        print_json(asdict(found))
        return
    rows = [
        {"trial": one.number, **one.values, found.metric: one.score, "run": one.run_id, "outcome": one.outcome}
        for one in found.trials
    ]
    show(rows, as_json=False, title="Trials", empty="no trial was made")
    best = "no trial has a score" if found.best is None else f"best: trial {found.best.number}, {found.best.values}"
    typer.echo(f"{best}; labels have cost ε {found.epsilon:g}; {found.ended}")
    if found.best is None:
        raise typer.Exit(1)
