"""What a party's owner allows in an alignment."""

import pytest

from parley.party.alignment import (
    AlignmentRefused,
    AlignmentRules,
    TooFewMatches,
    TooManyAlignments,
    check_matches,
    check_rate,
    check_request,
)
from parley.services.party.alignment_attempts import AttemptLog

RULES = AlignmentRules(allowed=True, minimum_matches=10, per_day=2, tables=("open",))
DAY = 86400.0


def test_an_alignment_within_the_rules_passes():
    check_request(RULES, "bank", "open", 10)
    check_matches(RULES, "bank", 10)
    check_rate(RULES, "bank", "open", [0.0], DAY)


def test_an_owner_may_forbid_alignment_altogether():
    with pytest.raises(AlignmentRefused, match=r"policy\.alignment\.allowed"):
        check_request(AlignmentRules(False, 1, 1, None), "bank", "open", 100)


def test_a_closed_table_is_refused():
    with pytest.raises(AlignmentRefused, match="table closed is not open"):
        check_request(RULES, "bank", "closed", 100)


def test_too_few_ids_are_refused_before_and_after():
    with pytest.raises(TooFewMatches, match="9 ids came"):
        check_request(RULES, "bank", "open", 9)
    with pytest.raises(TooFewMatches, match="only 9 ids are common"):
        check_matches(RULES, "bank", 9)


def test_the_third_alignment_of_a_day_is_refused_and_the_next_day_allowed():
    with pytest.raises(TooManyAlignments, match=r"possible in 12\.0 hours"):
        check_rate(RULES, "bank", "open", [DAY / 2, DAY * 3 / 4], DAY)
    check_rate(RULES, "bank", "open", [DAY / 2, DAY * 3 / 4], 1.51 * DAY)


def test_attempts_survive_a_restart_and_a_torn_line(tmp_path):
    AttemptLog(tmp_path).add("hub", "t", "n", 1.0)
    with (tmp_path / "attempts.jsonl").open("a") as file:
        file.write('{"time": 2.0, "coord')
    AttemptLog(tmp_path).add("hub", "t", "n", 3.0)
    AttemptLog(tmp_path).add("hub", "other", "n", 4.0)
    assert AttemptLog(tmp_path).times("hub", "t") == [1.0, 3.0]
    assert AttemptLog(tmp_path).times("rival", "t") == []
