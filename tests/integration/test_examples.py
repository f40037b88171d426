"""Examples that are programs, as whoever copies them runs them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_companies_with_different_rows_and_spellings_align_and_train(tmp_path):
    command = [sys.executable, str(EXAMPLES / "align_records.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("1300 of them common to all") == 4
    (accuracy,) = re.findall(r"test accuracy (\d\.\d+)", done.stdout)
    assert float(accuracy) > 0.9
