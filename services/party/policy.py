"""The owner's floors: what a party's policy asks of every run, whatever its spec says. Each refusal names its floor."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from parley.party.roles import Coverage, Floors, Offer
from parley.services.party.config import Policy
from parley.spec.protection import AggregationSpec
from parley.spec.run import RunSpec


class PolicyRefused(PermissionError):
    """This party's policy does not accept the run."""


def check_policy(policy: Policy, spec: RunSpec, index: int, coordinator: str) -> None:
    """Refuse a run that this party's owner did not allow, by its spec alone.

    Raises:
        PolicyRefused: with what the policy says, what the run asks for, and what to do.
    """
    _refuse(
        spec,
        index,
        [*_of_names(policy, spec, index, coordinator), *_of_sums(policy, spec), *_of_columns(policy, spec, index)],
    )


def check_coverage(policy: Policy, spec: RunSpec, index: int, covered: Coverage | None) -> None:
    """Refuse a run that would tell too much of too few rows, by what its algorithm foretells of it.

    Raises:
        PolicyRefused: naming the floor.
    """
    if covered is None:
        _refuse(spec, index, [f"{spec.train.algorithm} does not say what its sums cover: use a newer version of it"])
        return
    _refuse(spec, index, list(_of_rows(policy, spec, index, covered)))


def check_prediction(policy: Policy, spec: RunSpec, index: int, table: str, columns: Collection[str]) -> None:
    """Refuse a model's use on rows, or on columns, that the owner keeps from runs.

    Raises:
        PolicyRefused: naming the floor.
    """
    views, reasons = policy.views.get(table, {}), list[str]()
    closed = bool(views) and table != spec.table_of(index) and not policy.free_columns
    if closed and all(set(columns) != set(names) for names in views.values()):
        reasons.append(f"table {table} is open by `views` alone ({', '.join(views)}), and the model has other columns")
    if spec.privacy.features.kind == "none":
        reasons += _of_exact_values(policy, spec, table)
    _refuse(spec, index, reasons)


def covered_by_noise(offer: Offer, spec: RunSpec) -> Offer:
    """The same offer, where rows that were noised once make everything that leaves noisy too.

    Parties that hold labels beside their rows release functions of those as well: theirs stay exact.
    """
    if offer.coverage is None or spec.privacy.features.kind != "once" or spec.train.layout != "vertical":
        return offer
    return replace(offer, coverage=replace(offer.coverage, exact=False))


def floors_of(policy: Policy) -> Floors:
    """What the policy asks of each sum, for the gates that values leave by."""
    return Floors(policy.minimum_parties, "clip" if policy.aggregation.out_of_range == "clip" else "spoil")


def limit_of(policy: Policy, settings: AggregationSpec) -> float:
    """The largest magnitude that this party adds to a sum in the ring that a spec names."""
    usual = AggregationSpec(ring_bits=settings.ring_bits).resolved[2]
    return usual if policy.aggregation.limit is None else policy.aggregation.limit


def chosen_columns(policy: Policy, spec: RunSpec, index: int) -> tuple[str, ...] | None:
    """The columns of this party's table that a spec which passed `check_policy` reads; None for all."""
    entry = spec.parties[index]
    return policy.columns_of(spec.table_of(index), entry.view, entry.columns)


def _refuse(spec: RunSpec, index: int, reasons: list[str]) -> None:
    if reasons:
        raise PolicyRefused(f"{spec.parties[index].name}'s policy refuses the run: " + "; ".join(reasons))


def _of_names(policy: Policy, spec: RunSpec, index: int, coordinator: str) -> Iterator[str]:
    if coordinator not in policy.coordinators:
        yield f"coordinator {coordinator} is not among {list(policy.coordinators)}"
    if spec.train.algorithm not in policy.algorithms:
        yield f"algorithm {spec.train.algorithm} is not allowed here"
    closed = [name for name in spec.tables_of(index) if policy.tables is not None and name not in policy.tables]
    if closed:
        yield f"table {', '.join(closed)} is not open to runs"


def _of_sums(policy: Policy, spec: RunSpec) -> Iterator[str]:
    aggregation = spec.privacy.aggregation
    if aggregation.kind not in policy.aggregations:
        yield f"aggregation {aggregation.kind} is not allowed here"
    least = aggregation.minimum_parties if aggregation.recovery else spec.sampled
    if least < policy.minimum_parties:
        remedy = "raise privacy.aggregation.minimum_parties" if aggregation.recovery else "let more parties take part"
        yield (
            f"a sum over {least} parties could be opened, and `minimum_parties` is {policy.minimum_parties}: {remedy}"
        )
    limit = limit_of(policy, aggregation)
    if aggregation.kind != "plain" and aggregation.resolved[2] != limit:
        yield (
            f"privacy.aggregation.limit is {aggregation.resolved[2]:g}, and `aggregation.limit` of the policy is "
            f"{limit:g}: write that one (runs with different limits would tell how large a value is)"
        )


def _of_columns(policy: Policy, spec: RunSpec, index: int) -> Iterator[str]:
    entry, table = spec.parties[index], spec.table_of(index)
    views = policy.views.get(table, {})
    named = f"write `view: {next(iter(views))}` under this party" if views else "leave `columns` out"
    if entry.view is not None and entry.view not in views:
        yield f"`views` has no {entry.view!r} of table {table}" + (f": there are {', '.join(views)}" if views else "")
    if entry.columns is not None and not policy.free_columns:
        yield f"`free_columns` is off, so that no run differs from another by a column: {named}"
    if entry.view is None and entry.columns is None and views and not policy.free_columns:
        yield f"table {table} is open by `views` alone ({', '.join(views)}): {named}"


def _of_rows(policy: Policy, spec: RunSpec, index: int, covered: Coverage) -> Iterator[str]:
    table = spec.table_of(index)
    if covered.rows < policy.minimum_rows:
        yield f"the run trains on fewer rows than `minimum_rows`, {policy.minimum_rows}: take more rows"
    if covered.exact and covered.batch < policy.minimum_batch:
        yield (
            f"a value without noise would be made from fewer rows than `minimum_batch`, {policy.minimum_batch}: "
            "take larger batches"
        )
    if covered.evaluated is not None and covered.evaluated < policy.minimum_evaluation:
        yield (
            f"metrics would be taken over fewer rows than `minimum_evaluation`, {policy.minimum_evaluation}: hold out "
            "more rows, or none"
        )
    if not covered.exact and covered.honest > policy.features.honest:
        yield (
            f"the noise of {covered.honest} parties is needed, and `features.honest`, {policy.features.honest}, is how "
            "many (this one among them) are trusted to keep theirs: lower `honest` in the spec, which adds noise"
        )
    changing = [name for name, asked in {
        "train.parties_per_round": spec.sampled < len(spec.parties),
        "privacy.aggregation.recovery": spec.privacy.aggregation.recovery,
    }.items() if asked]  # fmt: skip
    if covered.exact and changing and not covered.own_batches and policy.differencing != "allow":
        yield (
            f"sums over changing parties could be subtracted where each is over most of the rows (`differencing` is "
            f"{policy.differencing}): leave {' and '.join(changing)} out, or take batches of at most half of the rows"
        )
    if covered.exact:
        yield from _of_exact_values(policy, spec, table)


def _of_exact_values(policy: Policy, spec: RunSpec, table: str) -> Iterator[str]:
    """What keeps values of a table from leaving without noise."""
    if policy.features.required and spec.privacy.features.kind == "none":
        yield (
            f"values of table {table} would leave without noise, and `features.required` is on: write "
            f"`privacy: {{features: {{kind: once, epsilon: …, bound: …}}}}`, ε up to {policy.features.epsilon:g}"
        )
    allowed = None if policy.exact_sums is None else policy.exact_sums.get(spec.train.algorithm, ())
    if allowed is not None and table not in allowed:
        yield f"`exact_sums` does not let {spec.train.algorithm} see sums of table {table} without noise"
