"""How dates are written is said in a form that can be read."""

import pytest
from pydantic import ValidationError

from parley.services.party.config import DateConfig


def test_a_format_by_which_no_date_can_be_read_is_refused_at_once():
    with pytest.raises(ValidationError, match=r"write it like %d\.%m\.%Y"):
        DateConfig(columns=("born",), format="%Q")
    assert DateConfig(columns=("born",), format="%d.%m.%Y").format == "%d.%m.%Y"
