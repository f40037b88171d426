"""A run that was recorded: what a coordinator saw, and what it might have guessed, as files that anyone can make.

    sums.npz     any number of arrays, (rows, numbers): sums over parties that were opened, all over the same rows
    columns.npz  arrays of (rows,): columns of a party, true values, to see whether the sums confirm them
    noisy.npz    arrays of (rows, classes): targets ỹ that a party worked out of what it received, one for each release
    labels.npz   one array `labels` of (rows,): the true classes
    spec.yaml    the run's spec, which says what was guaranteed

The first two make an attack on columns, the next two one on labels.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from parley.attacks.columns import confirmed
from parley.attacks.findings import Finding, bounded, unbounded
from parley.attacks.labels import cap, log_likelihoods, margin
from parley.attacks.tapes import Array
from parley.privacy.label_mechanisms import choose_mechanism
from parley.spec.parsing import parse_spec

SUMS, COLUMNS, NOISY, LABELS, SPEC = "sums.npz", "columns.npz", "noisy.npz", "labels.npz", "spec.yaml"


class RecordingUnusable(ValueError):
    """A folder holds no recording, or parts that do not belong together."""


def save(folder: Path, spec_yaml: str, **parts: dict[str, Array]) -> None:
    """Write a recording; `parts` are `sums`, `columns`, `noisy` and `labels`, as far as there are any."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SPEC).write_text(spec_yaml)
    for name, arrays in parts.items():
        named: dict[str, Any] = dict(arrays)
        np.savez_compressed(folder / f"{name}.npz", **named)


def attack_recording(folder: Path) -> Iterator[Finding]:
    """Mount the attacks that a recording has the material for.

    Raises:
        RecordingUnusable: if there is none, or parts of it differ in their rows.
    """
    present = {name for name in (SUMS, COLUMNS, NOISY, LABELS) if (folder / name).is_file()}
    if not {SUMS, COLUMNS} <= present and not {NOISY, LABELS, SPEC} <= present | _spec_in(folder):
        raise RecordingUnusable(
            f"{folder} holds no recording: it takes {SUMS} and {COLUMNS}, or {NOISY}, {LABELS} and {SPEC}"
        )
    if {SUMS, COLUMNS} <= present:
        sums, columns = _read(folder / SUMS), _read(folder / COLUMNS)
        _require_rows(folder, [*sums, *columns])
        yield confirmed(np.hstack(sums), np.stack(columns, axis=1))
    if {NOISY, LABELS} <= present:
        yield _labels(folder)


def _labels(folder: Path) -> Finding:
    """The likeliest class of each record by all its releases, against the ε of the spec."""
    noisy, (truth,) = _read(folder / NOISY), _read(folder / LABELS)
    _require_rows(folder, [*noisy, truth])
    settings = parse_spec((folder / SPEC).read_text(encoding="utf-8")).privacy.labels
    classes = noisy[0].shape[1]
    if settings.mechanism == "off":
        share = float((noisy[0].argmax(axis=1) == truth).mean())
        told = f"{share:.0%} of {len(truth)} labels right"
        return unbounded("label inference", "party", told, share, 1 / classes, "set privacy.labels")
    mechanism = choose_mechanism(settings.mechanism, classes, settings.epsilon, settings.kind)
    distinct = [each for number, each in enumerate(noisy) if not any(np.array_equal(each, b) for b in noisy[:number])]
    scores = np.sum([log_likelihoods(mechanism, each) for each in distinct], axis=0)
    share = float((scores.argmax(axis=1) == truth).mean())
    epsilon = settings.epsilon * (len(noisy) if settings.mechanism == "per_step" else 1)
    limit = cap(epsilon, classes)
    told = f"{share:.0%} of {len(truth)} labels right, {len(distinct)} different draws in {len(noisy)} releases"
    guarantee = f"ε = {epsilon:g} ({settings.mechanism}): {limit:.0%}"
    return bounded("label inference", "party", told, share, min(1.0, limit + margin(limit, len(truth))), guarantee)


def _read(path: Path) -> list[Array]:
    try:
        with np.load(path, allow_pickle=False) as kept:
            return [np.asarray(kept[name]) for name in sorted(kept)]
    except (ValueError, OSError) as error:
        raise RecordingUnusable(f"{path} cannot be read: write it with numpy.savez ({type(error).__name__})") from None


def _require_rows(folder: Path, parts: list[Array]) -> None:
    if len({len(part) for part in parts}) != 1:
        raise RecordingUnusable(f"{folder}: the parts of a recording are over different numbers of rows")


def _spec_in(folder: Path) -> set[str]:
    return {SPEC} if (folder / SPEC).is_file() else set()
