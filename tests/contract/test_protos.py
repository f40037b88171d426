"""The protos against those of the last release: a client that was generated from these goes on working."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROTOS = Path(__file__).parents[2] / "protos"
BUF = Path(sys.executable).parent / "buf"


def compared(protos: Path) -> subprocess.CompletedProcess[str]:
    [image] = (PROTOS / "released").glob("*.binpb")
    command = [BUF, "breaking", protos, "--against", image]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_protos_break_nothing_that_was_released():
    done = compared(PROTOS)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("line", "change", "complaint"),
    [
        ("  bytes data = 3;\n", "", 'Previously present field "3" with name "data"'),
        ("  bytes data = 3;\n", "  bytes data = 40;\n", 'Previously present field "3" with name "data"'),
        ("  bytes data = 3;\n", "  string data = 3;\n", 'changed type from "bytes" to "string"'),
    ],
    ids=["removed", "renumbered", "of another type"],
)
def test_a_released_field_cannot_change(tmp_path, line, change, complaint):
    protos = shutil.copytree(PROTOS, tmp_path / "protos")
    tensor = protos / "parley" / "tensor" / "v1" / "tensor.proto"
    assert line in tensor.read_text()
    tensor.write_text(tensor.read_text().replace(line, change))
    done = compared(protos)
    assert done.returncode != 0
    assert complaint in done.stdout
