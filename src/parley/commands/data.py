"""`parley data`: data to try a federation on."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from parley.commands.options import Force, Json
from parley.display import print_json, print_table, table_of

app = typer.Typer(no_args_is_help=True, help="Prepare data.")


class Format(StrEnum):
    """A file format."""

    parquet = "parquet"
    csv = "csv"
    npz = "npz"
    svm = "svm"


class Strips(StrEnum):
    """How an image is cut."""

    horizontal = "horizontal"
    vertical = "vertical"


class Cut(StrEnum):
    """How columns are dealt out."""

    even = "even"
    importance = "importance"
    correlation = "correlation"


@app.callback()
def data() -> None:
    """Prepare data."""


@app.command()
def split(
    source: Annotated[
        str, typer.Argument(help="digits, breast_cancer, wine, iris, diabetes, a file or an IDX folder.")
    ],
    parties: Annotated[str, typer.Option(help="Names of the parties, such as bank,shop,telco.", metavar="A,B,…")],
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
    label_column: Annotated[str | None, typer.Option(help="Column with the labels.")] = None,
    id_column: Annotated[str | None, typer.Option(help="Column that names the rows.")] = None,
    format: Annotated[Format | None, typer.Option(help="Format of the files.")] = None,  # noqa: A002
    strips: Annotated[Strips, typer.Option(help="How images are cut.")] = Strips.horizontal,
    standardise: Annotated[bool, typer.Option("--standardise", help="Give columns mean 0 and deviation 1.")] = False,
    shuffle_ids: Annotated[bool, typer.Option("--shuffle-ids", help="Write each file in another order.")] = False,
    limit: Annotated[int | None, typer.Option(help="Keep so many rows, drawn at random.", min=1)] = None,
    features: Annotated[int | None, typer.Option(help="Number of features of an svmlight file.", min=1)] = None,
    delimiter: Annotated[str, typer.Option(help="What separates the fields of a CSV file.")] = ",",
    rows: Annotated[bool, typer.Option("--rows", help="Deal out rows instead of columns.")] = False,
    cut: Annotated[
        Cut, typer.Option(help="Deal columns out by importance for the label or by correlation, as VertiBench does.")
    ] = Cut.even,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="With --rows: shares of each class from Dirichlet(alpha). With --cut importance: shares of importance "
            "likewise; with --cut correlation: from 0 (spread) to 1 (together)."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of what is drawn.", min=0)] = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Cut one data set into the files that separate organisations would have.

    Columns are cut by default: every party gets the same rows and its own columns, and the coordinator the labels.

    Example: [bold]parley data split digits --parties bank,shop,telco --out data[/bold]
    """
    from parley.splitting import split_dataset

    summary = split_dataset(
        source,
        [name.strip() for name in parties.split(",") if name.strip()],
        out,
        label_column=label_column,
        id_column=id_column,
        shuffle_ids=shuffle_ids,
        limit=limit,
        n_features=features,
        delimiter=delimiter,
        format=None if format is None else format.value,
        standardise=standardise,
        strips=strips.value,
        rows=rows,
        alpha=alpha,
        cut=cut.value,
        seed=seed,
        force=force,
    )
    if json:
        print_json(_plain(summary))
        return
    kind = f"{len(summary.classes)} classes" if summary.classes else summary.kind
    title = f"{summary.source}: {summary.rows} rows, {summary.columns} columns, {kind}"
    shown = ("holder", "file", "content", "rows", "columns", "image")
    print_table(table_of([{name: row[name] for name in shown} for row in summary.table()], title))


def _plain(summary: Any) -> dict[str, Any]:
    files = [
        {
            "holder": file.holder,
            "path": str(file.path),
            "content": file.content,
            "rows": file.rows,
            "columns": list(file.columns),
            "image_shape": file.image_shape,
        }
        for file in summary.files
    ]
    return {"source": summary.source, "rows": summary.rows, "classes": list(summary.classes), "files": files}
