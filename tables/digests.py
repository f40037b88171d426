"""Digests of what is read from tables: equal if, and only if, ids, names and values are."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from parley.tables.loading import Labels, Table
from parley.tables.rows import pieces
from parley.tables.texts import terminated


def table_digest(table: Table) -> str:
    """SHA-256 over ids, column names and feature values, hexadecimal."""
    digest = _named(table.ids, table.columns)
    features = table.features
    parts = (features.indptr, features.indices, features.data) if sparse.issparse(features) else (features,)
    for part in parts:
        _add(digest, np.asarray(part))
    return digest.hexdigest()


def labels_digest(labels: Labels) -> str:
    """SHA-256 over ids, names of classes and labels, hexadecimal."""
    digest = _named(labels.ids, labels.classes)
    _add(digest, labels.values)
    return digest.hexdigest()


def _named(ids: Any, names: Any) -> "hashlib._Hash":
    digest = hashlib.sha256()
    for part in (*names, ""):
        digest.update(part.encode() + b"\0")
    for rows in pieces(len(ids)):
        digest.update(terminated(ids[rows]))
    return digest


def _add(digest: "hashlib._Hash", array: NDArray[Any]) -> None:
    digest.update(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
