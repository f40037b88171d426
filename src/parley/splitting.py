"""Cut one data set into the files that separate organisations would have, so that anyone can try a federation.

By columns (the default): every party gets the same rows and its own block of columns, and the coordinator the labels.
By rows: every party gets its own rows, all columns and its own labels, for the algorithms between equal agents.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse

from parley.datasets import Dataset, load_dataset
from parley.numerics.streams import stream
from parley.tables.loading import Table, standardised

Format = Literal["parquet", "csv", "npz", "svm"]
Strips = Literal["horizontal", "vertical"]
Cut = Literal["even", "importance", "correlation"]

_FEW_CLASSES = 20
_CUTS_TRIED = 300
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


class SplitError(ValueError):
    """A data set cannot be cut up as asked."""


class SplitImpossible(SplitError):
    """There are too many parties, or their names do not make file names."""


class SplitExists(SplitError):
    """Files would be overwritten."""


@dataclass(frozen=True)
class SplitFile:
    """One file that was written."""

    path: Path
    holder: str
    """The party's name, or `labels` for the coordinator's file."""
    content: Literal["features", "labels"]
    rows: int
    columns: tuple[str, ...]
    """Names of the feature columns, or of the label column."""
    image_shape: tuple[int, int] | None = None
    """Height and width of the party's strip, for a `cnn`."""


@dataclass(frozen=True)
class SplitSummary:
    """What was cut, and into which files."""

    source: str
    rows: int
    columns: int
    kind: str
    """`classes`, `real` or `none`."""
    classes: tuple[str, ...]
    files: tuple[SplitFile, ...]

    def table(self) -> list[dict[str, str]]:
        """Return one row of text per file, for printing."""
        return [
            {
                "holder": file.holder,
                "file": str(file.path),
                "content": file.content,
                "rows": str(file.rows),
                "columns": str(len(file.columns)),
                "first … last": file.columns[0]
                if len(file.columns) == 1
                else f"{file.columns[0]} … {file.columns[-1]}",
                "image": "×".join(map(str, file.image_shape)) if file.image_shape else "",
            }
            for file in self.files
        ]


def split_dataset(
    source: str | Path,
    parties: Sequence[str],
    out: Path | str,
    *,
    label_column: str | None = None,
    id_column: str | None = None,
    shuffle_ids: bool = False,
    limit: int | None = None,
    n_features: int | None = None,
    delimiter: str = ",",
    format: Format | None = None,  # noqa: A002  (the word that the command line uses)
    standardise: bool = False,
    strips: Strips = "horizontal",
    rows: bool = False,
    alpha: float | None = None,
    cut: Cut = "even",
    seed: int = 0,
    force: bool = False,
) -> SplitSummary:
    """Cut `source` (see `load_dataset`) into one file per party and a label file, in `out`.

    Columns are cut into contiguous, nearly equal blocks; an image into `horizontal` or `vertical` strips. With `rows`,
    rows are dealt out instead: evenly and at random, or, with `alpha`, each class in shares from Dirichlet(alpha), so
    that a small alpha gives each party few classes. `cut` deals out columns as VertiBench does: by `importance` for the
    label, in shares from Dirichlet(alpha), or by `correlation`, where alpha goes from 0 (columns that go together are
    spread over all parties) to 1 (they are together at one); alpha is 1 if left out. `shuffle_ids` writes each file in
    another order, as organisations would. Sparse data are written as svmlight, other data as Parquet, unless `format`
    says otherwise.
    """
    _refuse_names(parties)
    if alpha is not None and not rows and cut == "even":
        raise SplitImpossible("Alpha deals out rows by class, or columns: ask for a split by rows, or for a cut, too.")
    if rows and cut != "even":
        raise SplitImpossible("A cut deals out columns: leave it out where rows are dealt.")
    dataset = load_dataset(
        source,
        label_column=label_column,
        id_column=id_column,
        limit=limit,
        n_features=n_features,
        delimiter=delimiter,
        seed=seed,
    )
    if standardise:
        table = standardised(Table(dataset.ids, dataset.features, dataset.columns, dataset.name))
        dataset = Dataset(
            dataset.name, dataset.ids, table.features, dataset.columns, dataset.labels, dataset.image_shape
        )
    chosen: Format = format or ("svm" if issparse(dataset.features) else "parquet")
    if chosen not in get_args(Format):
        raise SplitImpossible(f"Unknown format {chosen!r}: use one of {', '.join(get_args(Format))}.")
    if rows:
        pieces = _by_rows(dataset, parties, alpha, seed)
    elif cut != "even":
        pieces = _by_cut(dataset, parties, cut, 1.0 if alpha is None else alpha, seed)
    else:
        pieces = _by_columns(dataset, parties, strips)
    return _write_all(dataset, pieces, Path(out), chosen, shuffle_ids, seed, force)


@dataclass(frozen=True, eq=False)
class _Piece:
    """What one holder gets."""

    holder: str
    data: Dataset
    features: bool
    labels: bool


def _by_columns(dataset: Dataset, parties: Sequence[str], strips: Strips) -> list[_Piece]:
    width = len(dataset.columns)
    height_and_width = dataset.image_shape
    blocks: list[tuple[NDArray[np.int64], tuple[int, int] | None]]
    if height_and_width is None:
        blocks = [(block, None) for block in np.array_split(np.arange(width), len(parties))]
    else:
        pixels = np.arange(width).reshape(height_and_width)
        axis = 0 if strips == "horizontal" else 1
        cut = np.array_split(pixels, len(parties), axis=axis)
        blocks = [(strip.reshape(-1), (strip.shape[0], strip.shape[1])) for strip in cut]
    if any(not len(block) for block, _ in blocks):
        what = "columns" if height_and_width is None else f"{strips} lines of pixels"
        raise SplitImpossible(f"{dataset.name} has fewer {what} than the {len(parties)} parties: name fewer parties.")
    return _pieces_of(dataset, parties, blocks)


def _pieces_of(
    dataset: Dataset, parties: Sequence[str], blocks: Sequence[tuple[NDArray[np.int64], tuple[int, int] | None]]
) -> list[_Piece]:
    pieces = [
        _Piece(
            party,
            Dataset(
                dataset.name,
                dataset.ids,
                dataset.features[:, block],
                [dataset.columns[index] for index in block],
                None,
                shape,
            ),
            features=True,
            labels=False,
        )
        for party, (block, shape) in zip(parties, blocks, strict=True)
    ]
    return pieces if dataset.labels is None else [*pieces, _Piece("labels", dataset, features=False, labels=True)]


def _by_cut(dataset: Dataset, parties: Sequence[str], cut: Cut, value: float, seed: int) -> list[_Piece]:
    if issparse(dataset.features) or dataset.image_shape is not None:
        raise SplitImpossible(f"{dataset.name} is sparse, or of images: leave the cut out.")
    labels = None if dataset.labels is None else np.asarray(dataset.labels)
    features = np.asarray(dataset.features, dtype=np.float64)
    blocks = dealt_columns(features, labels, len(parties), cut, value, seed)
    return _pieces_of(dataset, parties, [(block, None) for block in blocks])


def dealt_columns(
    features: NDArray[Any], labels: NDArray[Any] | None, parties: int, cut: str, value: float, seed: int
) -> list[NDArray[np.int64]]:
    """Columns of each party, after Z. Wu, J. Hou, B. He: VertiBench, ICLR 2024.

    `importance`: the parties' shares of what columns say about the label are drawn from Dirichlet(value, …), and
    columns dealt so as to come near to them, the most important first; the paper assigns columns with these odds and
    measures importance by SHAP values, here it is the absolute correlation with the label. `correlation`: of many
    random cuts, the one whose correlation between parties (spread of the singular values of their block of the
    correlation matrix) is at `value` of the way from the highest found to the lowest; the paper looks for it by a
    genetic algorithm.
    """
    width = features.shape[1]
    if parties > width:
        raise SplitImpossible(f"There are fewer columns ({width}) than the {parties} parties: name fewer parties.")
    generator = stream(seed, "split.columns")
    if cut == "importance":
        if value <= 0 or labels is None:
            raise SplitImpossible("A cut by importance needs alpha > 0, and labels: give both, or cut by correlation.")
        return _by_importance(_importances(features, labels), parties, value, generator)
    if not 0 <= value <= 1:
        raise SplitImpossible(f"A cut by correlation takes an alpha from 0 to 1, not {value:g}.")
    return _by_correlation(_correlations(features), parties, value, generator)


def _importances(features: NDArray[Any], labels: NDArray[Any]) -> NDArray[np.float64]:
    """The largest absolute correlation of each column with a class, or with a real label."""
    known = np.unique(labels)
    targets = [labels == one for one in known] if len(known) <= _FEW_CLASSES else [labels]
    both = _correlations(np.column_stack([features, *targets]))
    return np.asarray(np.abs(both[: features.shape[1], features.shape[1] :]).max(axis=1))


def _correlations(columns: NDArray[Any]) -> NDArray[np.float64]:
    centred = np.asarray(columns, dtype=np.float64)
    centred = centred - centred.mean(axis=0)
    lengths = np.linalg.norm(centred, axis=0)
    scaled = centred / np.where(lengths > 0, lengths, 1.0)
    return np.asarray(scaled.T @ scaled)


def _by_importance(
    importance: NDArray[np.float64], parties: int, alpha: float, generator: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Deal the columns so that the parties' shares of importance come near to shares from a Dirichlet distribution."""
    shares = generator.dirichlet(np.full(parties, alpha)) * importance.sum()
    held: list[list[int]] = [[] for _ in range(parties)]
    for place, column in enumerate(np.argsort(-importance, kind="stable").tolist()):
        empty = [m for m in range(parties) if not held[m]]
        left = len(importance) - place
        wanted = empty if left <= len(empty) else range(parties)
        owner = max(wanted, key=lambda m: shares[m] - importance[held[m]].sum())
        held[owner].append(column)
    return [np.sort(np.array(one, dtype=np.int64)) for one in held]


def _by_correlation(
    correlations: NDArray[np.float64], parties: int, value: float, generator: np.random.Generator
) -> list[NDArray[np.int64]]:
    width = len(correlations)
    drawn = [np.array_split(generator.permutation(width), parties) for _ in range(_CUTS_TRIED)]
    between = np.array([_between(correlations, blocks) for blocks in drawn])
    wanted = between.max() + value * (between.min() - between.max())
    return [np.sort(block) for block in drawn[int(np.argmin(np.abs(between - wanted)))]]


def _between(correlations: NDArray[np.float64], blocks: Sequence[NDArray[np.int64]]) -> float:
    """How much columns of different parties go together: the mean over pairs of √(Σ (σ − mean σ)² / d)."""
    pairs = [(a, b) for place, a in enumerate(blocks) for b in blocks[place + 1 :]]
    found = [np.linalg.svd(correlations[np.ix_(a, b)], compute_uv=False) for a, b in pairs]
    return float(np.mean([values.std() for values in found])) if found else 0.0


def _by_rows(dataset: Dataset, parties: Sequence[str], alpha: float | None, seed: int) -> list[_Piece]:
    if len(parties) > len(dataset.ids):
        raise SplitImpossible(f"{dataset.name} has {len(dataset.ids)} rows for {len(parties)} parties: name fewer.")
    shares = (
        _even_shares(dataset, len(parties), seed) if alpha is None else _class_shares(dataset, parties, alpha, seed)
    )
    return [
        _Piece(party, dataset.take(np.sort(share)), features=True, labels=dataset.labels is not None)
        for party, share in zip(parties, shares, strict=True)
    ]


def _even_shares(dataset: Dataset, count: int, seed: int) -> list[NDArray[np.int64]]:
    return np.array_split(stream(seed, "split.rows").permutation(len(dataset.ids)), count)


def _class_shares(dataset: Dataset, parties: Sequence[str], alpha: float, seed: int) -> list[NDArray[np.int64]]:
    """Deal out each class in proportions p ~ Dirichlet(alpha, …, alpha)."""
    if alpha <= 0 or dataset.labels is None or dataset.kind != "classes":
        raise SplitImpossible(
            f"Shares by class need alpha > 0 and labels that are classes, got alpha {alpha} and {dataset.kind}: "
            "leave alpha out to deal rows evenly."
        )
    generator = stream(seed, "split.dirichlet")
    shares: list[list[NDArray[np.int64]]] = [[] for _ in parties]
    for label in np.unique(dataset.labels):
        members = generator.permutation(np.flatnonzero(dataset.labels == label))
        cuts = np.cumsum(generator.dirichlet(np.full(len(parties), alpha)))[:-1] * len(members)
        for share, part in zip(shares, np.split(members, np.round(cuts).astype(int)), strict=True):
            share.append(part)
    dealt = [np.concatenate(share) for share in shares]
    for index in range(len(dealt)):  # a small alpha can leave a party with nothing: the largest gives it one row
        if not len(dealt[index]):
            largest = max(range(len(dealt)), key=lambda m: len(dealt[m]))
            dealt[index], dealt[largest] = dealt[largest][:1], dealt[largest][1:]
    return dealt


def _write_all(
    dataset: Dataset, pieces: Sequence[_Piece], out: Path, format_: Format, shuffle: bool, seed: int, force: bool
) -> SplitSummary:
    planned: list[tuple[SplitFile, Dataset]] = []
    for index, piece in enumerate(pieces):
        data = piece.data
        if shuffle:
            data = data.take(stream(seed, "split.order", index).permutation(len(data.ids)))
        if piece.features:
            path = out / f"{piece.holder}.{format_}"
            shape = data.image_shape
            planned.append((SplitFile(path, piece.holder, "features", len(data.ids), tuple(data.columns), shape), data))
        if piece.labels:
            stem = "labels" if piece.holder == "labels" else f"{piece.holder}.labels"
            path = out / f"{stem}.{'csv' if format_ == 'svm' else format_}"  # svmlight has no place for bare labels
            planned.append((SplitFile(path, piece.holder, "labels", len(data.ids), ("label",)), data))
    present = [str(file.path) for file, _ in planned if file.path.exists()]
    if present and not force:
        raise SplitExists(f"{', '.join(present)} would be overwritten: choose another folder, or force it.")
    out.mkdir(parents=True, exist_ok=True)
    for file, data in planned:
        if file.content == "features":
            _write_features(file.path, data, format_)
        else:
            _write_labels(file.path, data, "csv" if format_ == "svm" else format_)
    classes = () if dataset.kind != "classes" else tuple(str(label) for label in np.unique(dataset.labels))  # type: ignore[arg-type]
    files = tuple(file for file, _ in planned)
    return SplitSummary(dataset.name, len(dataset.ids), len(dataset.columns), dataset.kind, classes, files)


def _write_features(path: Path, data: Dataset, format_: Format) -> None:
    if format_ == "svm":
        _write_svmlight(path, data.ids, csr_matrix(data.features))
        return
    dense = data.features.toarray() if issparse(data.features) else data.features
    if format_ == "npz":
        np.savez_compressed(path, x=dense, ids=data.ids, columns=np.array(data.columns))
        return
    columns = {"id": _id_array(data.ids), **dict(zip(data.columns, np.ascontiguousarray(dense.T), strict=True))}
    _write_arrow(path, pa.table(columns), format_)


def _write_labels(path: Path, data: Dataset, format_: Format) -> None:
    if format_ == "npz":
        np.savez_compressed(path, label=np.asarray(data.labels), ids=data.ids)
        return
    _write_arrow(path, pa.table({"id": _id_array(data.ids), "label": data.labels}), format_)


def _write_arrow(path: Path, table: pa.Table, format_: Format) -> None:
    if format_ == "csv":
        pa.csv.write_csv(table, path)
    else:
        pa.parquet.write_table(table, path, compression="zstd")


def _write_svmlight(path: Path, ids: NDArray[np.str_], matrix: csr_matrix) -> None:
    """Write rows as `0 index:value … # id`: label 0, since labels have a file of their own."""
    matrix.sort_indices()
    with path.open("w", encoding="utf-8") as file:
        for row, identity in enumerate(ids):
            span = slice(matrix.indptr[row], matrix.indptr[row + 1])
            entries = zip((matrix.indices[span] + 1).tolist(), matrix.data[span], strict=True)
            file.write(f"0 {' '.join(f'{index}:{value}' for index, value in entries)} # {identity}\n")


def _id_array(ids: NDArray[np.str_]) -> Any:
    """Integers where all ids are plain ones: they are smaller on disk and read back as the same text."""
    try:
        numbers = ids.astype(np.int64)
    except (ValueError, OverflowError):
        return ids
    return numbers if np.array_equal(numbers.astype(np.str_), ids) else ids


def _refuse_names(parties: Sequence[str]) -> None:
    bad = [name for name in parties if not _NAME.fullmatch(name) or name == "labels"]
    if not parties or bad or len(set(parties)) != len(parties):
        raise SplitImpossible(
            f"Parties {list(parties)} must be one or more different names of letters, digits, dashes and underscores, "
            "none of them 'labels': they become file names."
        )
