"""What leaves of a column's figures has few digits, and enough to read the column by."""

from parley.privacy.coefficients import Coefficient, shared


def told(**figures):
    found = [Coefficient("built", value, figure=name.replace("_", " ")) for name, value in figures.items()]
    return {one.figure: one.value for one in shared("bank", found, "columns").coefficients}


def test_where_values_lie_is_told_to_three_digits_of_their_deviation():
    years = told(mean=1985.43219, deviation=18.7654, quantile_0_5=1987.6543, bin_1_up_to=1962.3456)
    assert years == {"mean": 1985.4, "deviation": 18.8, "quantile 0 5": 1987.7, "bin 1 up to": 1962.3}
    large = told(mean=1.00012345678e12, deviation=9.8e8)
    assert large == {"mean": 1.000123e12, "deviation": 9.8e8}


def test_other_figures_and_places_within_a_deviation_have_three_digits():
    assert told(mean=0.00345678, deviation=2.0, iv=0.123456, psi=12.3456) == {
        "mean": 0.00346,
        "deviation": 2.0,
        "iv": 0.123,
        "psi": 12.3,
    }
    assert told(mean=1234.567) == {"mean": 1230.0}
    assert told(mean=7.0, deviation=0.0) == {"mean": 7.0, "deviation": 0.0}
