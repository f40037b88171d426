"""Entity alignment at a party: what its owner allows, checked by the party itself.

Private set intersection answers "which of my ids do you have?" to whoever runs it, and a coordinator that makes up ids
can ask about anyone. So a party bounds how often it answers, refuses lists that are too short, and keeps back its
share of the shuffle (`privacy.psi`) until it has seen that the intersection is large enough to name no single person.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

DAY_SECONDS = 86400.0


class AlignmentRefused(PermissionError):
    """This party's policy does not accept the alignment."""


class TooFewMatches(PermissionError):
    """So few ids are common that the intersection would point at persons."""


class TooManyAlignments(PermissionError):
    """The coordinator has aligned this table as often today as the policy allows."""


@dataclass(frozen=True)
class AlignmentRules:
    """What a party's policy says about alignment."""

    allowed: bool
    minimum_matches: int
    """Fewest ids in an intersection, and in the list of whoever asks."""
    per_day: int
    """Most alignments of one table by one coordinator in 24 hours."""
    tables: Collection[str] | None
    """Tables that are open; all if None."""


def check_request(rules: AlignmentRules, party: str, table: str, coordinator_ids: int) -> None:
    """Refuse what can be refused before anything is read."""
    if not rules.allowed:
        raise AlignmentRefused(f"{party}'s policy allows no alignment: ask its owner to set policy.alignment.allowed")
    if rules.tables is not None and table not in rules.tables:
        raise AlignmentRefused(f"{party}'s policy refuses: table {table} is not open")
    if coordinator_ids < rules.minimum_matches:
        raise TooFewMatches(
            f"{coordinator_ids} ids came to compare with, {party}'s policy asks for at least {rules.minimum_matches}"
        )


def check_rate(rules: AlignmentRules, party: str, table: str, earlier: Sequence[float], now: float) -> None:
    """Refuse one alignment too many. `earlier` are the times of those before, in Unix seconds."""
    recent = [time for time in earlier if now - time < DAY_SECONDS]
    if len(recent) >= rules.per_day:
        hours = (min(recent) + DAY_SECONDS - now) / 3600
        raise TooManyAlignments(
            f"table {table} of {party} was aligned {len(recent)} times within a day, its policy's limit: the next one "
            f"is possible in {hours:.1f} hours"
        )


def check_matches(rules: AlignmentRules, party: str, matches: int) -> None:
    """Refuse an intersection that is too small; the coordinator then never learns which of its ids are in it."""
    if matches < rules.minimum_matches:
        raise TooFewMatches(
            f"only {matches} ids are common, {party}'s policy asks for at least {rules.minimum_matches}: nobody learnt "
            "which of the coordinator's ids they are"
        )
