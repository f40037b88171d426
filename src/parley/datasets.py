"""Data sets that anyone can try Parley on: those in scikit-learn, MNIST-like IDX folders, and one's own files."""

import gzip
import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets

from parley.numerics.streams import batch
from parley.tables.errors import ColumnMissing
from parley.tables.loading import ROW_NUMBER, TableRequest, load_labels, load_table

BUNDLED = ("digits", "breast_cancer", "wine", "iris", "diabetes")

_IDX_PARTS = ("train", "t10k")


class DatasetError(ValueError):
    """A data set cannot be loaded."""


class UnknownDataset(DatasetError):
    """The source is neither a bundled data set, nor a file, nor an IDX folder."""


class DatasetUnreadable(DatasetError):
    """A file of the data set is missing, truncated or something else than it should be."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A whole data set, before it is cut up."""

    name: str
    ids: NDArray[np.str_]
    features: Any
    """rows × columns: float32 array, or CSR matrix."""
    columns: list[str]
    labels: NDArray[Any] | None
    """Integers or text for classes, floats for real targets."""
    image_shape: tuple[int, int] | None = None
    """Height and width if the columns are the pixels of an image, row by row."""

    @property
    def kind(self) -> str:
        """`classes` or `real`, after the labels; `none` without."""
        if self.labels is None:
            return "none"
        return "real" if self.labels.dtype.kind == "f" else "classes"

    def take(self, rows: NDArray[np.int64]) -> "Dataset":
        """Return some rows."""
        labels = None if self.labels is None else self.labels[rows]
        return replace(self, ids=self.ids[rows], features=self.features[rows], labels=labels)


def load_dataset(
    source: str | Path,
    *,
    label_column: str | None = None,
    id_column: str | None = None,
    limit: int | None = None,
    n_features: int | None = None,
    delimiter: str = ",",
    seed: int = 0,
) -> Dataset:
    """Load a bundled data set by name, an IDX folder (MNIST, Fashion-MNIST), or a CSV, Parquet, NPZ or svmlight file.

    `limit` keeps that many rows, drawn at random since many files are sorted by class; they keep their identities.
    """
    path = Path(source)
    if str(source) in BUNDLED:
        dataset = _bundled(str(source))
    elif path.is_dir():
        dataset = _idx_folder(path)
    elif path.is_file():
        dataset = _file(path, label_column, id_column, n_features, delimiter)
    else:
        raise UnknownDataset(
            f"{str(source)!r} is neither a file, nor a folder, nor one of {', '.join(BUNDLED)}: check the spelling."
        )
    if limit is None:
        return dataset
    if limit < 1:
        raise DatasetError(f"A limit of {limit} rows leaves nothing: give at least 1.")
    return dataset.take(batch(seed, "split.limit", 0, 0, len(dataset.ids), limit))


def _bundled(name: str) -> Dataset:
    loaded = getattr(datasets, f"load_{name}")()
    features = loaded.data.astype(np.float32)
    columns = [str(column).replace(" ", "_") for column in loaded.feature_names]
    image_shape = None
    if name == "digits":
        features, columns, image_shape = features / 16, _pixel_names(8, 8), (8, 8)  # intensities are 0 … 16
    labels = loaded.target.astype(np.float64 if name == "diabetes" else np.int64)
    return Dataset(name, _row_numbers(len(features)), features, columns, labels, image_shape)


def _idx_folder(folder: Path) -> Dataset:
    """Rows 0 … 59999 are the training part and the rest the test part, in the order of the files."""
    images = np.concatenate([_idx(folder, f"{part}-images-idx3-ubyte", dimensions=3) for part in _IDX_PARTS])
    labels = np.concatenate([_idx(folder, f"{part}-labels-idx1-ubyte", dimensions=1) for part in _IDX_PARTS])
    if len(images) != len(labels):
        raise DatasetUnreadable(f"{folder}: {len(images)} images but {len(labels)} labels: download the files again.")
    rows, height, width = images.shape
    features = images.reshape(rows, -1) / np.float32(255)
    return Dataset(
        folder.name, _row_numbers(rows), features, _pixel_names(height, width), labels.astype(np.int64), (height, width)
    )


def _idx(folder: Path, name: str, *, dimensions: int) -> NDArray[np.uint8]:
    openers: list[tuple[Path, Callable[..., Any]]] = [(folder / f"{name}.gz", gzip.open), (folder / name, open)]
    found = next(((path, opener) for path, opener in openers if path.is_file()), None)
    if found is None:
        raise DatasetUnreadable(
            f"{folder} has no {name} or {name}.gz: it is not an MNIST-like folder, or not complete."
        )
    path, opener = found
    try:
        with opener(path, "rb") as file:
            content = file.read()
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DatasetUnreadable(f"{path} cannot be read ({error}): download it again.") from error
    # IDX: 0, 0, type (8 = unsigned byte), number of dimensions; sizes as big-endian uint32; then the bytes.
    header = 4 + 4 * dimensions
    shape = tuple(np.frombuffer(content[4:header], dtype=">u4").tolist())
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) != header + int(np.prod(shape)):
        raise DatasetUnreadable(f"{path} is not a whole IDX file of {dimensions} dimensions: download it again.")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def _file(
    path: Path, label_column: str | None, id_column: str | None, n_features: int | None, delimiter: str
) -> Dataset:
    label = label_column or "label"
    request = TableRequest(path, id_column=id_column, label_column=label, n_features=n_features, delimiter=delimiter)
    try:
        table = load_table(request)
    except ColumnMissing as missing:
        if id_column is not None or missing.column != "id":
            raise
        id_column = ROW_NUMBER  # one file that is about to be cut up is aligned with itself
        table = load_table(replace(request, id_column=id_column))
    try:
        read = load_labels(path, label, id_column=id_column, delimiter=delimiter)
    except ColumnMissing as missing:
        if label_column is not None or missing.column != label:
            raise
        return Dataset(path.name, table.ids, table.features, table.columns, None)
    return Dataset(path.name, table.ids, table.features, table.columns, _typed(np.array(read.classes)[read.values]))


def _typed(texts: NDArray[np.str_]) -> NDArray[Any]:
    """Turn texts into integers or floats where all of them are."""
    for kind in (np.int64, np.float64):
        try:
            return texts.astype(kind)
        except ValueError:
            continue
    return texts


def _row_numbers(rows: int) -> NDArray[np.str_]:
    return np.arange(rows).astype(np.str_)


def _pixel_names(height: int, width: int) -> list[str]:
    return [f"pixel_{row}_{column}" for row in range(height) for column in range(width)]
