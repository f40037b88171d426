"""What leaves an organisation in one run: sentences, and behind each the fields of the manifest that carry it."""

from collections.abc import Sequence

from parley.dashboard.views import CrossingView, StatementView
from parley.privacy.manifest import Entry
from parley.protocols.manifest import manifest_of, statements_of
from parley.protocols.statements import Statement
from parley.spec.parsing import parse_spec


def crossings(spec_yaml: str) -> Sequence[StatementView]:
    """What leaves in a run of this spec; names, counts and choices are left out."""
    spec = parse_spec(spec_yaml)
    entries = {entry.field.removeprefix("parley."): entry for entry in manifest_of(spec.train.algorithm)}
    return [_view(statement, entries) for statement in statements_of(spec)]


def tables_of(spec_yaml: str) -> dict[str, list[str]]:
    """The tables that each party reads in a run."""
    spec = parse_spec(spec_yaml)
    return {party.name: list(spec.tables_of(index)) for index, party in enumerate(spec.parties)}


def _view(statement: Statement, entries: dict[str, Entry]) -> StatementView:
    fields = [
        CrossingView(name, entries[name].derived_from, entries[name].protection, entries[name].seen_by)
        for name in statement.fields
    ]
    return StatementView(statement.sender, statement.text, statement.moment, fields)
