"""Exploring behind a party's session."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.numerics.arrays import Vector
from parley.numerics.streams import stream
from parley.party.explore.correlations import PLACE, WITH, Correlations, Products
from parley.party.explore.steps import OF_A_BIN, SUMMARY, Columns, Figures, counted, explore, explore_counts
from parley.party.mailbox import Mailbox
from parley.party.peers import Peers, in_time
from parley.party.roles import Begun, Coverage, Offer, Opened, PartyAlgorithm, Plan, SavedModel, scalar
from parley.privacy.accounting import RecordCounts
from parley.privacy.coefficients import Coefficient
from parley.privacy.count_noise import CountNoise, CountReleases
from parley.privacy.permanent_noise import number_tags, tag_records
from parley.privacy.release import MaskedColumns
from parley.protocols.explore.codec import PROTOCOL, decode_masked_columns, encode_contribution, encode_masked_columns
from parley.protocols.explore.messages import ExploreRound, ReleasedLabels
from parley.protocols.explore.settings import ExploreSpec
from parley.protocols.tensor.codec import Blobs, MessageInvalid
from parley.spec.rows import RowSets, divide
from parley.spec.run import RunSpec
from parley.tables.loading import id_digest

PATIENCE_SECONDS = 600.0
"""For the other parties' masked columns."""
STRONGEST = 50
"""Correlations of each column that are told, where there are more: of a thousand columns all are a million."""
_VALUES, _PLACES, _OTHERS, _PARTIES = "correlations", "correlated places", "correlated others", "correlated parties"
_INFLATION = "inflation"


@dataclass(frozen=True)
class State:
    """What was found; None before."""

    figures: Figures | None = None
    correlations: Correlations | None = None
    """With columns of the other parties; None where the run has none, or not yet."""


class ExploreRole:
    """Makes the figures when it is asked to keep them."""

    encode = staticmethod(encode_contribution)

    def __init__(self, columns: Columns, settings: ExploreSpec, counts: CountReleases | None = None) -> None:
        """`counts` noises what is told, where the spec asks for it."""
        self._columns, self._settings, self._counts = columns, settings, counts

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> State:
        """Nothing found, or what a checkpoint holds."""
        if checkpoint is None:
            return State()
        found = Figures(checkpoint["summary"].numpy(), checkpoint["bins"].numpy())
        return State(found, _correlations_in(checkpoint))

    def plan(self, state: State, asked: ExploreRound) -> Plan:
        """Make the figures in the first round, and keep them."""
        if asked.phase == "correlate":
            raise MessageInvalid("the run's spec asks for no correlations")
        if state.figures is None:
            state = State(self._explored(asked), state.correlations)
        elif asked.labels is not None:
            raise MessageInvalid("the figures are made: labels come with the first round")
        if asked.phase == "checkpoint":
            if asked.k != 1:
                raise MessageInvalid("there is one iteration")
            return Plan(state, checkpoint=1)
        return Plan(state, finished=True)

    def _explored(self, asked: ExploreRound) -> Figures:
        settings, labels = self._settings, asked.labels
        if (labels is not None) != settings.against_label:
            raise MessageInvalid("labels come if, and only if, the spec says `against_label`")
        if labels is not None and len(labels.classes) != len(self._columns.reference):
            raise MessageInvalid(f"{len(self._columns.reference)} labels are expected")
        if labels is not None and _fewest(labels) < settings.smallest_cell:
            # Evidence for a class of few rows tells in which bins they are.
            raise MessageInvalid(
                f"labels: no class may have fewer rows than `smallest_cell`, {settings.smallest_cell}: lower it as far "
                "as owners' `minimum_batch` goes, explore more rows, or leave `against_label` out"
            )
        if self._counts is None:
            return explore(self._columns, settings.bins, settings.smallest_cell, labels)
        noised = self._counts.release(counted(self._columns, labels))
        return explore_counts(noised, self._columns, settings.bins, settings.smallest_cell, labels)

    def tensors(self, state: State) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        return self.model_tensors(state) | {"k": scalar(1)}

    def model_tensors(self, state: State) -> dict[str, Tensor]:
        """The figures."""
        if state.figures is None:
            raise MessageInvalid("nothing is found yet")
        kept = {"summary": torch.tensor(state.figures.summary), "bins": torch.tensor(state.figures.bins)}
        if state.correlations is not None:
            kept |= {_VALUES: torch.tensor(state.correlations.values)}
            kept |= {_INFLATION: torch.tensor(state.correlations.inflation)}
            kept |= {_PLACES: torch.tensor(state.correlations.places), _OTHERS: torch.tensor(state.correlations.others)}
            kept |= {_PARTIES: torch.tensor(list("\n".join(state.correlations.parties).encode()), dtype=torch.uint8)}
        return kept


class CorrelatingRole:
    """Explores, and multiplies columns with those of the other parties first."""

    encode = staticmethod(encode_contribution)

    def __init__(self, inner: ExploreRole, products: Products, peers: Peers) -> None:
        self._inner, self._products, self._peers = inner, products, peers
        self._received = Mailbox[MaskedColumns](1)
        peers.on("MaskedColumns", self._take)
        self.begin, self.tensors, self.model_tensors = inner.begin, inner.tensors, inner.model_tensors

    async def act(self, state: State, asked: ExploreRound) -> Plan:
        """Exchange masked columns and add up products; later keep what they sum to beside the other figures."""
        if asked.phase == "correlate":
            if state.figures is not None:
                raise MessageInvalid("the figures are made: products are summed before")
            draft = await in_time(self._exchanged(), PATIENCE_SECONDS, "exchanging masked columns")
            return Plan(state, draft=draft, row_sums=0)
        if state.figures is None:
            if asked.products is None or len(asked.products) != self._products.size:
                raise MessageInvalid(f"{self._products.size} products are expected with the first figures")
            state = replace(state, correlations=self._products.correlations(asked.products))
        return self._inner.plan(state, asked)

    async def _exchanged(self) -> Vector:
        products = self._products
        for receiver, release in products.outgoing():
            blobs: Blobs = deque()
            await self._peers.push(receiver, blobs, MaskedColumns=encode_masked_columns(release, blobs))
        received = {
            pair.number: (await self._received.get(sender, 1, str(pair.number))).elements
            for pair, sender in products.incoming()
        }
        return await asyncio.to_thread(products.draft, received)

    def _take(self, sender: int, message: Any, blobs: Blobs) -> None:
        part = decode_masked_columns(message, blobs)
        self._products.check(sender, part)
        self._received.put(sender, 1, str(part.pair), part)


def _correlations_in(kept: Mapping[str, Tensor]) -> Correlations | None:
    if _VALUES not in kept:
        return None
    names = bytes(kept[_PARTIES].tolist()).decode().split("\n")
    values, places = kept[_VALUES].numpy(), kept[_PLACES].numpy()
    inflation = kept[_INFLATION].numpy() if _INFLATION in kept else np.full(len(places), np.nan)  # old runs have none
    return Correlations(values, places, kept[_OTHERS].numpy(), tuple(names), inflation)


def _fewest(labels: ReleasedLabels) -> int:
    """Rows of the rarer class."""
    ones = int(np.count_nonzero(labels.classes))
    return min(ones, len(labels.classes) - ones)


def row_sets(spec: RunSpec, rows: int) -> RowSets:
    """Which rows are explored, and which they are compared with."""
    return divide(spec.split, rows, stream(spec.seed, "split"))


def columns_of(opened: Opened) -> Columns:
    """The table as the run sees it, in the units that its owner wrote."""
    table, rows = opened.table, row_sets(opened.spec, len(opened.table))
    values = np.array(table.features, dtype=np.float64)
    scales = {} if table.fitted is None else {one.column: (one.shift, one.scale) for one in table.fitted.numbers}
    for number, column in enumerate(table.columns):
        shift, scale = scales.get(column, (0.0, 1.0))
        values[:, number] = values[:, number] * scale + shift
    absent = np.array([table.missing.get(column, 0) for column in table.columns], dtype=np.float64)
    ranges = np.array([(shift - scale, shift + scale) for column in table.columns
                       for shift, scale in [scales.get(column, (0.0, 1.0))]]).reshape(-1, 2)  # fmt: skip
    few = (absent > 0) & (absent < opened.spec.settings(ExploreSpec).smallest_cell)
    told = np.where(few, np.nan, absent / max(1, len(table)))
    return Columns(values[rows.trained], values[rows.test], told, ranges)


def count_releases(opened: Opened) -> CountReleases | None:
    """How counts of rows are noised and charged; None where the spec does not ask for it. Nothing is charged yet."""
    features, table = opened.spec.privacy.features, opened.table
    if features.kind != "counts":
        return None
    assert opened.privacy is not None  # noqa: S101 (every session has the party's ledger)
    local, sets = opened.privacy(), row_sets(opened.spec, len(table))
    values = np.array(table.features, dtype=np.float64) + 0.0
    tags = tag_records(local.noise, f"features/{table.name}", table.ids.tolist(), number_tags(values))
    counted_rows = np.zeros(len(table), dtype=np.int64)
    counted_rows[np.concatenate([sets.trained, sets.test])] = 1
    mechanism = CountNoise(features.epsilon, features.delta, len(table.columns))
    return CountReleases(
        local.ledger,
        local.noise,
        opened.run_id,
        tuple(opened.names),
        local.rows,
        mechanism,
        tags,
        RecordCounts(counted_rows),
    )


def crossed_columns(opened: Opened) -> NDArray[np.int64]:
    """Places of the columns that the owner lets others' columns be multiplied with; none that is constant.

    In all rows, whichever of them the spec explores, as in a generalised linear model.
    """
    allowed, values = opened.correlations, opened.table.features
    return np.array(
        [
            place
            for place, column in enumerate(opened.table.columns)
            if (allowed == "all" or column in allowed) and np.ptp(np.asarray(values[:, place], dtype=np.float64)) > 0
        ],
        dtype=np.int64,
    )


def role(begun: Begun) -> ExploreRole | CorrelatingRole:
    """The role of a run."""
    columns, settings = columns_of(begun.opened), begun.spec.settings(ExploreSpec)
    inner = ExploreRole(columns, settings, count_releases(begun.opened))
    if not settings.correlations:
        return inner
    places = crossed_columns(begun.opened)
    products = Products(
        columns.reference[:, places],
        places,
        begun.index,
        tuple(begun.upper_sizes),
        tuple(begun.opened.names),
        begun.secrets("products"),
    )
    return CorrelatingRole(inner, products, begun.peers)


def accept(opened: Opened) -> Offer:
    """What the figures cover."""
    rows = row_sets(opened.spec, len(opened.table))
    settings, explored = opened.spec.settings(ExploreSpec), len(rows.trained)
    sets = [id_digest(opened.table.ids[chosen]) for chosen in (rows.trained, rows.test)]
    drawn = f"{settings.bins} bins of {settings.smallest_cell} of {sets[0]}, beside {sets[1]}"
    counts = count_releases(opened)
    warnings: tuple[str, ...] = ()
    if counts is not None:
        counts.rehearse()
        warnings = _ranges_warning(opened)
    covered = Coverage(
        explored,
        min(settings.smallest_cell, explored),
        sums=0,
        exact=counts is None,
        honest=1,
        drawn=drawn,
        figures=True,
    )
    return Offer(len(crossed_columns(opened)) if settings.correlations else 0, warnings, covered)


def _ranges_warning(opened: Opened) -> tuple[str, ...]:
    """Values are counted from −1 to 1 where no public figures are declared; that they are elsewhere is no secret."""
    known = () if opened.table.fitted is None else opened.table.fitted.numbers
    public = {one.column for one in known if (one.shift, one.scale) != (0.0, 1.0)}
    plain = [one.column for one in known if one.column not in public] if known else opened.table.columns
    if not plain:
        return ()
    return (
        f"{opened.name}: {len(plain)} columns have no public figures and are counted from -1 to 1: declare the middle "
        "and half of each one's range under `preprocess: {figures: {COLUMN: {shift: …, scale: …}}}`",
    )


def training_rows(spec: RunSpec, index: int, rows: int) -> NDArray[np.int64]:  # noqa: ARG001 (the same at every party)
    """The rows that are explored."""
    return row_sets(spec, rows).trained


def figures(model: SavedModel, columns: Sequence[str]) -> list[Coefficient]:
    """Every figure that was found, by column."""
    if "summary" not in model:
        return []
    found = _correlation_figures(model, columns)
    for column, summary, bins in zip(columns, model["summary"].numpy(), model["bins"].numpy(), strict=True):
        named = dict(zip(SUMMARY, summary, strict=True))
        for number, values in enumerate(bins, 1):
            named |= {f"bin {number} {name}": value for name, value in zip(OF_A_BIN, values, strict=True)}
        found += [Coefficient(column, float(value), figure=name) for name, value in named.items() if value == value]
    return found


def _correlation_figures(model: SavedModel, columns: Sequence[str]) -> list[Coefficient]:
    known = _correlations_in(model)
    if known is None:
        return []
    found = []
    for own, (place, values) in enumerate(zip(known.places, known.values, strict=True), 1):
        found.append(Coefficient(columns[place], float(own), figure=PLACE))
        if known.inflation[own - 1] == known.inflation[own - 1]:
            found.append(Coefficient(columns[place], float(known.inflation[own - 1]), figure="vif"))
        told = [at for at in np.argsort(-np.abs(values), kind="stable")[:STRONGEST] if values[at] == values[at]]
        for at in sorted(told):  # none of a column with itself, which is last in the order
            party, other = known.others[at]
            name = f"{WITH} {known.parties[party]} {other}"
            found.append(Coefficient(columns[place], float(values[at]), figure=name))
    return found


ALGORITHM = PartyAlgorithm(PROTOCOL, accept, role, training_rows=training_rows, coefficients=figures)
