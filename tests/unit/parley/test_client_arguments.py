"""What a Python program may hand to the client: ids of any spelling, specs as text or as files."""

from pathlib import Path

import numpy as np
import pytest

from parley.client import row_ids, spec_text


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ("17", ["17"]),
        (17, ["17"]),
        (["17", "42"], ["17", "42"]),
        ([17, 42.0], ["17", "42"]),
        (np.array([17, 42]), ["17", "42"]),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.int64(17), ["17"]),
        (range(2), ["0", "1"]),
        ((name for name in "ab"), ["a", "b"]),
        ([], []),
    ],
)
def test_ids_are_taken_as_people_write_them(given, ids):
    assert row_ids(given) == ids


@pytest.mark.parametrize("given", [[None], [["17"]], {"17": 1}.items(), [1.5], [float("nan")], [True]])
def test_what_is_no_id_is_refused_by_name(given):
    with pytest.raises(TypeError, match="an id is text or a whole number"):
        row_ids(given)


def test_a_spec_is_taken_as_text_as_a_path_or_as_the_name_of_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text("name: x\n")
    assert spec_text("name: x\n") == "name: x\n"
    assert spec_text(Path("spec.yaml")) == "name: x\n"
    assert spec_text("spec.yaml") == "name: x\n"
    assert spec_text("{name: x}") == "{name: x}"


@pytest.mark.parametrize("name", ["nowhere.yaml", "nowhere.yml", "folder/nowhere.yaml"])
def test_a_file_that_is_not_there_is_not_taken_for_a_spec(name):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        spec_text(name)
