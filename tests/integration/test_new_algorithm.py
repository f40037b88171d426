"""The template of an algorithm, as a stranger uses it: two wheels in a fresh virtual environment, and nothing else."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.integration.test_docs import copy_repository

ROOT = Path(__file__).parents[2]
TEMPLATE = Path("examples") / "new-algorithm"


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COVERAGE"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**kept, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}"
    return done.stdout


def wheel_of(source: Path, target: Path, **environment: str) -> Path:
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(target))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    run(sys.executable, "-m", "pip", "wheel", ".", *options, cwd=source, PATH=path, **environment)
    (found,) = target.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return copy_repository(tmp_path_factory.mktemp("sources") / "parley")


@pytest.fixture(scope="module")
def wheel(repository, tmp_path_factory):
    return wheel_of(repository, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(repository, wheel, tmp_path_factory):
    """A fresh virtual environment with both wheels; only what Parley depends on is lent by this one."""
    home = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", home / "venv", cwd=home)
    python = home / "venv" / "bin" / "python"
    (site,) = (home / "venv" / "lib").glob("python*/site-packages")
    lent = [path for path in sys.path if Path(path, "torch").exists() or Path(path, "grpc").exists()]
    (site / "lent.pth").write_text("\n".join(lent) + "\n")
    install = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet")
    run(*install, wheel, cwd=home)
    # The template's build imports Parley, as installed there.
    own = wheel_of(repository / TEMPLATE, tmp_path_factory.mktemp("template"), PYTHONPATH=str(site))
    run(*install, own, cwd=home)
    shutil.copytree(ROOT / TEMPLATE / "tests", home / "tests")
    shutil.copy(ROOT / TEMPLATE / "run.yaml", home / "run.yaml")
    return home


def test_a_wheel_has_one_package(wheel):
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"parley"}


def test_what_is_installed_is_what_runs(environment):
    asks = "import parley, federated_ridge; print(parley.__file__, federated_ridge.__file__)"
    found = run(environment / "venv" / "bin" / "python", "-c", asks, cwd=environment)
    assert found.count(str(environment)) == 2


def test_the_command_knows_the_algorithm(environment):
    command = (environment / "venv" / "bin" / "parley", "run", "check", "run.yaml")
    assert run(*command, cwd=environment).startswith("run.yaml: valid")


def test_the_template_keeps_the_contract_over_real_processes(environment):
    suite = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert " passed" in run(environment / "venv" / "bin" / "python", *suite, cwd=environment)


def test_the_template_stays_small():
    files = [path for path in (ROOT / TEMPLATE).rglob("*") if path.suffix in (".py", ".proto", ".toml")]
    own = [path for path in files if not {"tests", "contracts", "build"} & set(path.relative_to(ROOT).parts)]
    lines = [line.strip() for path in own for line in path.read_text().splitlines()]
    assert sum(bool(line) and not line.startswith(("#", "//")) for line in lines) <= 300
