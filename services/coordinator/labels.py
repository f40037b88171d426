"""The coordinator's label tables, loaded by name."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from parley.coordinator.labels import LabelKind, LabelsMissing
from parley.privacy.dataset_ledger import DatasetTerms
from parley.privacy.evaluations import EvaluationPolicy
from parley.services.coordinator.config import LabelConfig
from parley.spec.run import RunSpec
from parley.tables.identities import RowChoice
from parley.tables.loading import Labels, load_labels


@dataclass(frozen=True)
class LabelStore:
    """Label tables by name, read again when they change."""

    tables: dict[str, LabelConfig]
    choose: Callable[[RunSpec], RowChoice | None] = lambda _: None
    """The rows that a run's alignment chose."""
    _loaded: dict[tuple[object, ...], tuple[int, Labels]] = field(default_factory=dict, compare=False, repr=False)
    _contents: dict[str, tuple[int, str]] = field(default_factory=dict, compare=False, repr=False)

    def load(self, spec: RunSpec, kind: LabelKind) -> Labels:
        """The labels of a run."""
        name = spec.label_table
        if name not in self.tables:
            raise LabelsMissing(
                f"the coordinator has no labels {name!r}, only {sorted(self.tables)}: correct `labels` in the spec, or "
                "add the table to the coordinator's configuration"
            )
        return self._read(name, self.tables[name], kind, self.choose(spec))

    def terms(self, spec: RunSpec) -> DatasetTerms:
        """What the owner of a run's labels allows over all runs."""
        return self.terms_of(spec.label_table)

    def terms_of(self, table: str) -> DatasetTerms:
        """What the owner of a label table allows over all runs."""
        known = self.tables.get(table)
        if known is None:
            return DatasetTerms()
        all_terms = [self.tables[name].terms for name in self.names_of(table)]
        refused = any(terms.unprotected == "refuse" for terms in all_terms)
        least = min(terms.epsilon for terms in all_terms)
        return replace(known.terms, epsilon=least, unprotected="refuse" if refused else "allow")

    def evaluation_of(self, table: str) -> EvaluationPolicy:
        """What the owner of a label table lets out as metrics: the strictest that any of its names says."""
        policies = [self.tables[name].evaluation for name in self.names_of(table)]
        return EvaluationPolicy(
            minimum_rows=max(each.minimum_rows for each in policies),
            sets_per_row=min(each.sets_per_row for each in policies),
            evaluations_per_row=min(each.evaluations_per_row for each in policies),
            epsilon=min((each.epsilon for each in policies if each.epsilon is not None), default=None),
            budget=min(each.budget for each in policies),
        )

    def names_of(self, table: str) -> tuple[str, ...]:
        """Every name under which the labels of a table are configured, in that order.

        Links and copies of one file hold the same labels: a name that drew noise of its own, under a budget of its own,
        would be a second sample of them.
        """
        if table not in self.tables:
            return (table,)
        own = self._identity(self.tables[table])
        return tuple(name for name, config in self.tables.items() if name == table or self._identity(config) == own)

    def _identity(self, config: LabelConfig) -> str:
        """Which labels a configuration reads: those of a file by its bytes, of anything else by where it lies."""
        place = str(config.path or config.url)
        if isinstance(config.source, Path) and config.source.is_file():
            place, stamp = os.path.realpath(place), config.stamp()
            if self._contents.get(place, (None, ""))[0] != stamp:
                with config.source.open("rb") as file:
                    self._contents[place] = (stamp, hashlib.file_digest(file, "sha256").hexdigest())
            place = self._contents[place][1]
        return json.dumps([place, config.query, config.table, config.column])

    def row_names(self, spec: RunSpec, table: str, rows: int, digest: bytes) -> list[str]:
        """What to call the rows of a prediction: by id where this coordinator has the ids itself, else by number.

        Parties tell no ids. They have told the number of their rows and one digest of all ids; rows are in the order
        of their ids everywhere, so a label table with that digest has the same rows in the same order.
        """
        for name, only in ((table, None), (spec.label_table, self.choose(spec)), (spec.label_table, None)):
            if name in self.tables:
                labels = self._read(name, self.tables[name], "classes", only)
                if len(labels) == rows and bytes.fromhex(labels.row_digest) == digest:
                    return list(map(str, labels.ids.tolist()))
        return [f"#{row}" for row in range(rows)]

    def _read(self, name: str, config: LabelConfig, kind: LabelKind, only: RowChoice | None) -> Labels:
        stamp, known = config.stamp(), self._loaded.get((name, kind, only))
        if known is None or known[0] != stamp:
            labels = load_labels(
                config.source,
                config.column,
                config.format,
                config.id,
                kind=kind,
                delimiter=config.delimiter,
                only=only,
                spelling=config.spelling,
                unlabelled=config.unlabelled,
                classes=config.classes,
                unit=config.unit,
            )
            known = (stamp, labels)
            self._loaded[name, kind, only] = known
        return known[1]
