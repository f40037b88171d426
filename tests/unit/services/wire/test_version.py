"""What sides of different versions speak with each other, and what is said where they cannot."""

import pytest

from parley.services.wire.version import PROTOCOLS, VERSION, Side, common_protocol, mismatch

OWN = Side("the coordinator", "0.4.0", (4, 5))


@pytest.mark.parametrize(
    ("others", "chosen"),
    [((), 5), (((4, 5),), 5), (((4,), (4, 5)), 4), (((5,), (4,)), 0), (((3,),), 0), (((5, 6),), 5), (((),), 0)],
)
def test_the_highest_protocol_of_all_sides_is_chosen(others, chosen):
    sides = [OWN, *(Side(f"party {number}", "0", spoken) for number, spoken in enumerate(others))]
    assert common_protocol(sides) == chosen


def test_a_service_speaks_the_protocol_before_its_own_too():
    assert list(PROTOCOLS) == [PROTOCOLS[-1] - 1, PROTOCOLS[-1]]


@pytest.mark.parametrize(("version", "protocols"), [("0.1.0", (1,)), ("0.2.7", (2,)), ("0.3.0", ()), ("", ())])
def test_a_side_that_tells_no_protocols_is_known_by_its_version(version, protocols):
    assert Side.of("shop", version, []).protocols == protocols
    assert Side.of("shop", version, [7, 6]).protocols == (6, 7)


def test_who_is_behind_is_told_to_upgrade():
    old, older = Side("shop", "0.2.0", (3,)), Side("bank", "0.1.0", (1, 2))
    assert mismatch([OWN, older, old, Side("telco", "0.4.0", (4, 5))]) == (
        "no protocol in common: the coordinator (Parley 0.4.0) speaks protocol 4 and 5; bank (Parley 0.1.0) speaks "
        "protocol 1 and 2; shop (Parley 0.2.0) speaks protocol 3: upgrade bank, shop to Parley 0.4.0"
    )
    assert "upgrade the coordinator to Parley 0.6" in mismatch([OWN, Side("shop", "0.6", (6, 7))])
    between = mismatch([OWN, Side("shop", "0.3.9", (4,)), Side("bank", "0.4.1", (5, 6))])
    assert between.endswith("upgrade shop to Parley 0.4.1")


def test_this_version_can_be_told_to_services_that_tell_no_protocols():
    assert VERSION.count(".") == 2
