"""The coordinator's label tables, loaded by name."""

from collections.abc import Callable
from dataclasses import dataclass, field

from parley.coordinator.labels import LabelKind, LabelsMissing
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

    def load(self, spec: RunSpec, kind: LabelKind) -> Labels:
        """The labels of a run."""
        name = spec.label_table
        if name not in self.tables:
            raise LabelsMissing(
                f"the coordinator has no labels {name!r}, only {sorted(self.tables)}: correct `labels` in the spec, or "
                "add the table to the coordinator's configuration"
            )
        return self._read(name, self.tables[name], kind, self.choose(spec))

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
            )
            known = (stamp, labels)
            self._loaded[name, kind, only] = known
        return known[1]
