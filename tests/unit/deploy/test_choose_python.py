"""deploy/choose-python, with interpreters that say which they are, and the real pip asked about a folder of wheels."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "deploy" / "choose-python"
PINNED = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
TORCH = PINNED.removeprefix("torch==") + ("" if sys.platform == "darwin" else "+cpu")
TOOLS = ("cat", "dirname", "grep", "mktemp", "rm", "sed", "sh", "sort", "tr", "uname")


class Machine:
    """A PATH with some interpreters on it, and an index with some wheels of torch."""

    def __init__(self, folder: Path) -> None:
        self.programs, self.wheels = folder / "bin", folder / "wheels"
        self.programs.mkdir()
        self.wheels.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, tool
            (self.programs / tool).symlink_to(found)

    def has_python(self, version: str, *, name: str = "", lacks: str = "nothing") -> str:
        """Put an interpreter there that says it is of `version`, and otherwise is the one that runs this test."""
        cases = f'*version_info*) echo {version} ;; *"{lacks}"*) exit 1 ;; *) exec "{sys.executable}" "$@" ;;'
        return self._program(name or f"python{version}", f'case "$*" in {cases} esac')

    def has_name_that_does_not_run(self, name: str) -> str:
        return self._program(name, f"echo 'pyenv: {name}: command not found' >&2; exit 127")

    def has_torch_for(self, *versions: str) -> None:
        for version in versions:
            (self.wheels / f"torch-{TORCH}-cp{version.replace('.', '')}-none-any.whl").touch()

    def chooses(self, **variables: str) -> subprocess.CompletedProcess[str]:
        pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "PIP_CONFIG_FILE": os.devnull}
        return subprocess.run(
            [SCRIPT],
            env={"PATH": str(self.programs), "HOME": str(self.programs), **pip, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def _program(self, name: str, script: str) -> str:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_the_newest_python_that_has_torch_is_chosen(machine):
    newest = machine.has_python("3.13")
    machine.has_python("3.11")
    machine.has_torch_for("3.11", "3.12", "3.13")
    done = machine.chooses()
    assert (done.stdout, done.stderr) == (f"{newest}\n", "")


def test_a_newer_python_for_which_torch_cannot_be_had_is_passed_over_and_named(machine):
    machine.has_python("3.13")
    older = machine.has_python("3.12")
    machine.has_torch_for("3.11", "3.12")
    done = machine.chooses()
    assert done.stdout == f"{older}\n"
    assert done.stderr == "note: pip finds no CPU wheel of torch for Python 3.13\n"


def test_a_python_may_have_no_number_in_its_name(machine):
    only = machine.has_python("3.12", name="python3")
    machine.has_torch_for("3.12")
    assert machine.chooses().stdout == f"{only}\n"


def test_a_python_without_pip_is_asked_through_a_virtual_environment(machine):
    newest = machine.has_python("3.13", lacks="-m pip")
    machine.has_torch_for("3.13")
    assert machine.chooses().stdout == f"{newest}\n"


def test_a_python_that_cannot_make_virtual_environments_is_named_with_a_remedy(machine):
    machine.has_python("3.12", lacks="ensurepip")
    machine.has_torch_for("3.12")
    done = machine.chooses()
    assert done.returncode == 1
    assert done.stderr.startswith("error: Python 3.12 cannot make virtual environments: ")


def test_a_name_that_does_not_run_is_no_python(machine):
    machine.has_name_that_does_not_run("python3.13")
    older = machine.has_python("3.11")
    machine.has_torch_for("3.11", "3.13")
    done = machine.chooses()
    assert (done.stdout, done.stderr) == (f"{older}\n", "")


def test_without_a_python_one_sentence_says_what_to_install(machine):
    machine.has_python("3.9", name="python3")
    machine.has_python("3.14", name="python")
    done = machine.chooses()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: Parley needs Python 3.13, 3.12 or 3.11: ")
    assert "set PYTHON" in done.stderr


def test_without_torch_the_sentence_says_what_helps(machine):
    machine.has_python("3.13")
    machine.has_torch_for("3.11")
    done = machine.chooses()
    assert done.returncode == 1
    assert done.stderr == (
        f"error: pip finds no wheel of torch {TORCH} for Python 3.13: set TORCH_INDEX_URL to an index that has one, "
        "or install Python 3.12 or 3.11\n"
    )


def test_python_given_by_name_wins_over_a_newer_one(machine):
    machine.has_python("3.13")
    given = machine.has_python("3.11", name="my-python")
    machine.has_torch_for("3.11", "3.13")
    assert machine.chooses(PYTHON=given).stdout == f"{given}\n"


@pytest.mark.parametrize("version", ["3.10", "3.14"])
def test_python_given_by_name_is_refused_if_parley_is_not_tested_with_it(machine, version):
    machine.has_python("3.11")
    given = machine.has_python(version, name="my-python")
    machine.has_torch_for("3.11")
    done = machine.chooses(PYTHON=given)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"is Python {version}, and Parley needs 3.13, 3.12 or 3.11" in done.stderr


def test_python_given_by_a_name_that_does_not_run_is_refused(machine):
    machine.has_python("3.11")
    machine.has_torch_for("3.11")
    done = machine.chooses(PYTHON="python3.13")
    assert (done.returncode, done.stdout) == (1, "")
    assert "PYTHON=python3.13 does not run" in done.stderr
