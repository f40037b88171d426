"""What the command prints where no terminal reads it."""

import io

import pytest
from rich.console import Console

from parley import display

ROW = {"run_id": "a-run-with-a-long-name-1a2b3c4d", "state": "FAILED", "reason": "because of something " * 12}


@pytest.fixture
def output(monkeypatch):
    def console(**options):
        written = io.StringIO()
        monkeypatch.setattr(display, "console", Console(file=written, **options))
        return written

    return console


def test_a_table_that_is_piped_breaks_no_value_in_two(output):
    written = output(width=80)
    display.show([ROW], as_json=False)
    (line,) = [line for line in written.getvalue().splitlines() if "FAILED" in line]
    assert ROW["run_id"] in line
    assert ROW["reason"].strip() in line


def test_fields_that_are_piped_stay_on_their_lines(output):
    written = output(width=80)
    display.show_fields(ROW, as_json=False)
    assert len(written.getvalue().splitlines()) == 3


def test_a_narrow_terminal_breaks_sentences_before_it_breaks_an_id(output):
    written = output(width=80, force_terminal=True, color_system=None)
    display.show([ROW], as_json=False)
    assert any(ROW["run_id"] in line for line in written.getvalue().splitlines())
    assert max(map(len, written.getvalue().splitlines())) <= 80


@pytest.mark.parametrize(
    ("value", "shown"), [(121156.0, "121156"), (0.123456789, "0.12346"), (1e300, "1e+300"), (3, "3")]
)
def test_a_count_keeps_its_digits_and_a_share_five_of_them(value, shown):
    assert display.text(value) == shown
