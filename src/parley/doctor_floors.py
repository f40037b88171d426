"""A party's floors in sentences, for its owner."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parley.services.party.config import PartyConfig

Weakness = tuple[str, str, str]
"""A subject, what is wrong, and what to do."""


def explained(config: "PartyConfig") -> Iterator[str]:
    """What the policy keeps every run to."""
    policy = config.policy
    yield (
        f"a sum is over at least {policy.minimum_parties} parties, a value over at least {policy.minimum_batch} rows "
        f"unless it carries noise of its own, a run over {policy.minimum_rows} rows, metrics over "
        f"{policy.minimum_evaluation}"
    )
    limit = "the ring's own" if policy.aggregation.limit is None else f"{policy.aggregation.limit:g}"
    beyond = "is clipped" if policy.aggregation.out_of_range == "clip" else "keeps its sum from opening, naming nobody"
    yield f"the largest value in a sum is {limit}, whatever a spec says; one beyond it {beyond}"
    yield from _columns(config)
    if policy.exact_sums is not None:
        allowed = [f"{name} of {', '.join(tables) or 'none'}" for name, tables in policy.exact_sums.items()]
        yield f"sums without noise: {'; '.join(allowed) or 'none'}"
    rows, must = policy.features, "must noise rows" if policy.features.required else "may noise rows"
    yield f"a run {must} (`privacy.features`); all of them together cost a row at most ε = {rows.epsilon:g}"
    yield f"noise that parties share inside sums may rely on {rows.honest} of them, this one too (`features.honest`)"
    bound = {
        "columns": "of a linear block fewer exact sums of a row than tell its columns",
        "unbounded": "sums of a row unbounded",
    }.get(str(policy.sums_per_row), f"at most {policy.sums_per_row} exact sums of a row")
    same = {"refuse": "refused", "salt": "made with other batches where that helps, else refused", "allow": "allowed"}
    yield (
        f"a view serves at most {policy.runs_per_view} runs, {bound}; a run that could be subtracted from an earlier "
        f"one is {same[policy.differencing]}"
    )


def weaknesses(config: "PartyConfig") -> Iterator[Weakness]:
    """Where the policy leaves open what others can use."""
    policy = config.policy
    if policy.free_columns:
        remedy = "name sets of columns under `policy.views` and leave `free_columns` out"
        yield "floors", "specs choose columns freely: two runs that differ by one give that column away", remedy
    if policy.differencing == "allow":
        remedy = "set `policy.differencing: refuse`"
        yield "floors", "runs may be subtracted from each other, which gives a party's or a column's part away", remedy
    if policy.sums_per_row == "unbounded":
        remedy = "leave `policy.sums_per_row` out, or set a number of columns"
        yield "floors", "whoever sees the sums of a linear block can confirm a guessed column of it", remedy
    if policy.mixing == "allow":
        remedy = "set `policy.mixing: refuse`"
        yield "floors", "rows whose ε is finite may leave without noise too, which makes it infinite", remedy
    if policy.minimum_batch < 2:
        yield "floors", "a value may be made from a single row", "raise `policy.minimum_batch`"


def _columns(config: "PartyConfig") -> Iterator[str]:
    policy = config.policy
    for table in config.tables:
        if policy.tables is not None and table not in policy.tables:
            continue
        views = policy.views.get(table)
        if views:
            named = ", ".join(f"{name} ({len(columns)} columns)" for name, columns in views.items())
            yield f"table {table} is open by views: {named}" + (", or columns freely chosen" * policy.free_columns)
        else:
            yield f"table {table} is open as a whole" + (", or by columns freely chosen" * policy.free_columns)
