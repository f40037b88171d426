"""How what crosses is protected: secure sums, label privacy and budgets."""

from math import ceil, log2
from typing import Literal, Self

from pydantic import Field, model_validator

from parley.spec.section import Section

MOST_IN_TREES = 64
"""Parties of two trees: looking for trees that do not leak takes longer and longer."""
MOST_FRACTION_BITS = 52
"""A float64 of order 1 has no more digits after the point."""


MOST_IN_NARROW = 31
"""Parties whose sum has room in a ring of 32 bits."""
_USUAL = {64: (56, 2.0**16), 32: (26, 2.0**10), 16: (12, 2.0**5)}
"""For each ring: bits of one party's largest value, and that value if none is given."""


class AggregationSpec(Section):
    """How the parties' addends become a sum without being seen."""

    kind: Literal["pairwise", "two_tree", "plain"] = "pairwise"
    """`pairwise` withstands collusion; `two_tree` sends sums up two trees; `plain` hides nothing."""
    ring_bits: Literal[16, 32, 64] | None = None
    """Ring of the masked sums: fewer bits are fewer bytes and fewer digits. If left out, what the algorithm needs: 32
    where a network learns classes in float32 (up to 31 parties, no `limit` or `fraction_bits` given), else 64. 16 is
    for local rounds and for one level, and rounds at random, so that errors average out."""
    fraction_bits: int | None = Field(default=None, ge=0, le=60)
    """Binary digits after the point, f; if left out as many as `limit` leaves room for beside 127, 31 or 7 parties (in
    rings of 64, 32 and 16 bits): 40, 16 or 7 at the limits that are taken if none is given."""
    limit: float | None = Field(default=None, gt=0)
    """Largest magnitude R of a summed value; 2^16, 2^10 or 2^5 if left out."""
    minimum_parties: int = Field(default=2, ge=1, le=1024)
    """A sum over fewer parties is never opened."""
    recovery: bool = False
    """Open a sum without the parties that are lost in the middle of it, and go on without them (pairwise)."""
    threshold: int | None = Field(default=None, ge=2, le=1024)
    """With `recovery`: how many parties must be left, t; the smallest that withstands one colluder if left out."""

    def needed(self, sampled: int, participants: int) -> int:
        """Survivors that a sum over `participants` needs, in a run that samples so many parties (all, or some)."""
        return max(
            self.threshold or smallest_threshold(sampled), smallest_threshold(participants), self.minimum_parties
        )

    def check_recovery(self, sampled: int, can_go_on: bool) -> None:
        """Refuse a recovery that could never recover, or that a colluder could abuse."""
        if not self.recovery:
            if self.threshold is not None:
                raise ValueError(
                    "aggregation.threshold belongs to `recovery: true`: without it every party must answer"
                )
            return
        if not can_go_on:
            raise ValueError(
                "recovery is for algorithms whose averages may go on without some rows: in this one every "
                "party holds columns, or a place in the network, that no sum is right without"
            )
        if self.kind != "pairwise":
            raise ValueError(f"recovery takes pairwise masks off, and {self.kind} has none: take `kind: pairwise`")
        least, needed = smallest_threshold(sampled), self.needed(sampled, sampled)
        if self.threshold is not None and self.threshold < least:
            raise ValueError(
                f"aggregation.threshold {self.threshold} of {sampled} parties does not withstand one that colludes "
                f"with the coordinator: take at least {least}"
            )
        if needed >= sampled:
            remedy = "lower threshold or minimum_parties" if least < sampled else "it takes 4 parties to lose one"
            raise ValueError(
                f"recovery could never go on: a sum is over {sampled} parties and {needed} of them must be left; "
                f"{remedy}"
            )

    @property
    def resolved(self) -> tuple[int, int, float]:
        """Ring bits, fraction bits and limit, with the defaults filled in."""
        bits = self.ring_bits or 64
        room, usual = _USUAL[bits]
        limit = usual if self.limit is None else self.limit
        fraction = min(max(room - ceil(log2(limit)), 0), MOST_FRACTION_BITS)
        return bits, fraction if self.fraction_bits is None else self.fraction_bits, limit

    def chosen(self, needed: Literal[32, 64], parties: int) -> "AggregationSpec":
        """The same with a ring, where the spec left it to the algorithm, which needs so many bits."""
        if self.ring_bits is not None:
            return self
        asked = self.fraction_bits is not None or self.limit is not None
        return self.model_copy(update={"ring_bits": 64 if asked or parties > MOST_IN_NARROW else needed})


def smallest_threshold(participants: int) -> int:
    """The smallest t with 2t > n + 1: the coordinator and one party in league cannot collect both kinds of share."""
    return (participants + 1) // 2 + 1


class BinsSpec(Section):
    """The range of a regression's labels, declared from what everybody knows of them, never from the labels."""

    low: float = Field(allow_inf_nan=False)
    """The smallest label that is told apart; smaller ones count as this."""
    high: float = Field(allow_inf_nan=False)
    """The largest."""
    points: int | None = Field(default=None, ge=2, le=1024)
    """Points that the range is rounded to; the number with the smallest variance at this ε if left out."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"bins from low {self.low:g} to high {self.high:g} are no range: low must be smaller")
        return self


class LabelPrivacySpec(Section):
    """Differential privacy of labels towards the parties."""

    mechanism: Literal["once", "per_step", "off"] = "once"
    """`once` draws one noisy label per record, for all runs; `per_step` draws for each release; `off` draws none."""
    epsilon: float = Field(default=3.0, gt=0, le=100)
    """ε of all runs at this ε together (`once`), or of one release (`per_step`)."""
    kind: Literal["auto", "randomised_response", "unary_encoding", "laplace"] = "auto"
    """What is drawn: a class, a bit for each class, or (`per_step` only) Laplace noise on the target row. With `once`,
    `auto` takes the first or the second by their variance; with `per_step`, the paper's `laplace`."""
    delta: float = Field(default=1e-6, gt=0, lt=0.1)
    """δ at which reports convert per-step charges."""
    budget: float | None = Field(default=None, gt=0)
    """The run stops before a release that would take any record past this pure ε; the labels' owner may allow less."""
    bins: BinsSpec | None = None
    """For a regression with `once`: the range of its labels, which are noised on bins of it."""

    def check_kind(self, real: bool) -> None:
        """Refuse a protection that does not fit labels of this kind."""
        if self.mechanism == "off":
            if self.bins is not None:
                raise ValueError("labels.bins are for noise, and `mechanism: off` draws none: leave them out")
        elif real and (self.bins is None or self.mechanism != "once"):
            raise ValueError(
                "a regression's labels are protected by noise that is drawn once on bins of a declared range: write "
                "`labels: {mechanism: once, bins: {low: 0, high: 100}}` with a range that everybody may know, or "
                "`labels: {mechanism: off}` to send exact gradients"
            )
        elif real and self.kind != "auto":
            raise ValueError("labels.kind is for classes, and a regression's labels are noised on bins: leave it out")
        elif not real and self.bins is not None:
            raise ValueError("labels.bins are for a regression's labels, and this loss has classes: leave them out")

    @model_validator(mode="after")
    def _kind_fits(self) -> Self:
        if self.mechanism == "once" and self.kind == "laplace":
            raise ValueError("labels.kind laplace is for `mechanism: per_step`: once, draw classes or bits")
        if self.mechanism == "off" and self.kind != "auto":
            raise ValueError("labels.mechanism is off, so nothing is drawn: leave `kind` out")
        return self


class FeaturePrivacySpec(Section):
    """Differential privacy of each party's own rows, towards everybody else."""

    kind: Literal["once", "per_sum", "counts", "none"] = "none"
    """`once` noises each row one time, before anything is computed from it, for all runs; `per_sum` noises what a row
    adds to each sum, and to each step of its party's model (BAMBI, gradient steps); `counts` noises the counts of rows
    that an exploration's figures are made from; `none` noises none."""
    epsilon: float = Field(default=8.0, gt=0, le=16)
    """ε of one row of one party: for all runs at these settings together (`once`), or for one run (`counts`, and
    `per_sum`, where every prediction with its model costs the predicted rows as much again)."""
    delta: float = Field(default=1e-6, gt=0, lt=0.1)
    """δ that belongs to it."""
    bound: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """R: a row (preprocessed, the columns of its view) that is longer is shortened to this Euclidean norm; with
    `per_sum`, what a row adds to a sum."""
    step_bound: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """`per_sum`: largest norm of what a row adds to a step of its party's model, before the division by the batch."""
    honest: int = Field(default=2, ge=1, le=1024)
    """`per_sum`: how many parties, each one itself among them, are trusted not to give their noise away; their noise
    suffices. The parties' owners may trust fewer."""

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        fields = type(self).model_fields
        given = [name for name in ("step_bound", "honest") if getattr(self, name) != fields[name].default]
        if self.kind != "per_sum" and given:
            raise ValueError("features.step_bound and features.honest are for `kind: per_sum`: leave them out")
        return self


class ProtectionSpec(Section):
    """Protection of what crosses. The defaults are private."""

    aggregation: AggregationSpec = AggregationSpec()
    """Towards the coordinator."""
    labels: LabelPrivacySpec = LabelPrivacySpec()
    """Towards the parties."""
    features: FeaturePrivacySpec = FeaturePrivacySpec()
    """Towards everybody."""

    def check(self, *, parties: int) -> None:
        """Refuse settings that cannot protect a run of so many parties."""
        aggregation = self.aggregation
        bits, fraction, limit = aggregation.resolved
        if parties * limit * 2.0**fraction >= 2.0 ** (bits - 1):
            raise ValueError(
                f"{parties} parties × limit {limit:g} × 2^{fraction} does not fit a ring of {bits} bits: "
                "lower fraction_bits or limit, or take ring_bits: 64"
            )
        if aggregation.kind != "plain" and parties < 2:
            raise ValueError("a secure sum needs two parties; a run of one party must say `aggregation: {kind: plain}`")
        if aggregation.kind == "two_tree" and parties < 3:
            raise ValueError("two_tree needs three parties; two can use `kind: pairwise`")
        if self.features.kind == "per_sum" and self.features.honest > parties:
            raise ValueError(f"features.honest is {self.features.honest}, but `parties` lists {parties}")
        if self.features.kind == "per_sum" and aggregation.kind == "plain" and self.features.honest > 1:
            raise ValueError(
                "features per_sum shares noise inside sums, and `aggregation: {kind: plain}` shows every addend with "
                "its own share alone: take another kind, or write `honest: 1`"
            )
        if aggregation.kind == "two_tree" and parties > MOST_IN_TREES:
            raise ValueError(f"two_tree sums up to {MOST_IN_TREES} parties; more can use `kind: pairwise`")
        if aggregation.minimum_parties > parties:
            raise ValueError(f"minimum_parties is {aggregation.minimum_parties}, but `parties` lists {parties}")

    @model_validator(mode="after")
    def _budget_fits(self) -> Self:
        labels = self.labels
        if labels.budget is not None and labels.mechanism != "off" and labels.budget < labels.epsilon:
            raise ValueError(
                f"labels.budget {labels.budget:g} does not cover even one release of ε = {labels.epsilon:g}"
            )
        return self
