"""Coefficients on the wire: three digits, and nothing where nothing is known."""

from parley.privacy.coefficients import Coefficient
from parley.privacy.release import CoefficientGate
from parley.services.wire.coefficient_codec import encode_coefficients
from parley.services.wire.coefficient_figures import figures_of, inference_of

FOUND = [
    Coefficient("age", 1.23456, 0.0123456, 1.23456e-9, 1.21, 1.258),
    Coefficient("pay", 0.0),
    Coefficient("age", 1234.5, figure="mean"),
]


def test_what_is_known_of_a_coefficient_travels_to_three_digits_and_what_is_not_stays_unset():
    message = encode_coefficients(CoefficientGate("bank", "columns").release(FOUND))
    assert [one.value for one in message.coefficients] == [1.23, 0.0, 1230.0]
    known = {"standard_error": 0.0123, "p_value": 1.23e-9, "low": 1.21, "high": 1.26}
    assert inference_of(message.coefficients) == {"age": known}
    assert figures_of(message.coefficients) == {"age": {"mean": 1230.0}}


def test_a_party_that_shares_no_columns_sends_no_figure_of_them():
    message = encode_coefficients(CoefficientGate("bank", "party").release(FOUND))
    assert (len(message.coefficients), "keeps the coefficients" in message.kept) == (0, True)
