"""What the parties of a session agree to, and what becomes of it."""

from dataclasses import replace

import pytest

from parley.privacy.consent import Agreement, Beginning, ConsentDiffers, Member, check_agreements, consent_of

OWN = Agreement("train", b"s" * 32, b"n" * 32, 560, b"i" * 32, 12)
MEMBERS = [Member(name, name.encode() * 8, replace(OWN, nonce=name.encode() * 8)) for name in ("bank", "shop")]
BEGINNING = Beginning("run", "session", 10, 4, b"settled")


def test_parties_that_were_told_the_same_agree():
    check_agreements(OWN, MEMBERS, [12, 12])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"purpose": "predict"}, "purpose"),
        ({"protocol": 2}, "protocol"),
        ({"spec_digest": bytes(32)}, "spec"),
        ({"rows": 559}, "number of rows"),
        ({"id_digest": bytes(32)}, "rows"),
        ({"upper_size": 13}, "size of its block"),
        ({"nonce": b"short"}, "nonce"),
    ],
)
def test_who_was_told_something_else_is_named(change, what):
    members = [MEMBERS[0], replace(MEMBERS[1], agreement=replace(MEMBERS[1].agreement, **change))]
    with pytest.raises(ConsentDiffers, match=f"shop was told, or says, another {what} "):
        check_agreements(OWN, members, [12, 12])


def test_everything_that_was_agreed_on_is_in_the_consent():
    first, second = MEMBERS
    others = [
        (replace(BEGINNING, run_id="other"), MEMBERS),
        (replace(BEGINNING, session_id="other"), MEMBERS),
        (replace(BEGINNING, outputs=9), MEMBERS),
        (replace(BEGINNING, checkpoint=5), MEMBERS),
        (replace(BEGINNING, settled=b""), MEMBERS),
        (BEGINNING, MEMBERS[::-1]),
        (BEGINNING, MEMBERS[:1]),
        (BEGINNING, [first, replace(second, name="telco")]),
        (BEGINNING, [first, replace(second, public_key=bytes(32))]),
    ]
    for change in (
        {"purpose": "predict"},
        {"spec_digest": b""},
        {"nonce": b""},
        {"rows": 1},
        {"upper_size": 2},
        {"protocol": 3},
    ):
        others.append((BEGINNING, [replace(each, agreement=replace(each.agreement, **change)) for each in MEMBERS]))
    found = [consent_of(beginning, members) for beginning, members in [(BEGINNING, MEMBERS), *others]]
    assert len(set(found)) == len(found)
