"""Every command in the documentation runs, copied and pasted, in order.

A document's blocks run as one shell session in a copy of the repository: `sh` blocks as they stand, `python` blocks by
the interpreter of that session. A word after `sh` says who runs the block instead:

    containers   tests/e2e, where a Docker engine is
    cluster      nobody here: it needs a Kubernetes cluster; tests/e2e renders and validates the chart
    hosts        nobody here: it needs several hosts; tests/e2e plays it with containers
    ci           `.ci/run` and whoever changes the code
    credit       a test here, where the table of card holders is
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from parley.cli import app
from parley.client import RequestRefused
from tests.integration.conftest import spec

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"containers", "cluster", "hosts", "ci", "credit"}
CREDIT = ROOT.parent / "shared" / "data" / "credit" / "uci_credit_card.csv.xz"
FENCE = re.compile(r"^```(?P<language>sh|python)(?P<tag>[^\n]*)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
STOP = "trap 'kill $(jobs -p) 2> /dev/null || true; wait' EXIT"


@dataclass(frozen=True)
class Block:
    """Commands or a program, as a document shows them."""

    language: str
    tag: str
    text: str

    @property
    def shell(self) -> str:
        """The block as a part of a shell session."""
        return self.text if self.language == "sh" else f"python - <<'END_OF_BLOCK'\n{self.text}END_OF_BLOCK\n"


def blocks(document: Path) -> list[Block]:
    return [
        Block(found["language"], found["tag"].strip(), found["text"]) for found in FENCE.finditer(document.read_text())
    ]


def runs_here(document: Path) -> bool:
    return any(block.language == "sh" and not block.tag for block in blocks(document))


DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def copy_repository(target: Path) -> Path:
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("this is no git checkout: which files belong to the repository is unknown")
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    return target


def lend_environment(clone: Path) -> None:
    """Make .venv a view of the environment that runs this test, so that nothing is installed again."""
    (clone / ".venv").mkdir()
    for entry in Path(sys.prefix).iterdir():
        if entry.name != "installed.stamp":
            (clone / ".venv" / entry.name).symlink_to(entry)
    stubs = Path("src") / "parley" / "contracts"
    if (ROOT / stubs).exists():
        (clone / stubs).symlink_to(ROOT / stubs)
    (clone / ".venv" / "installed.stamp").touch()


def run_document(document: Path, clone: Path, tag: str = "", **environment: str) -> None:
    session = "\n".join(block.shell for block in blocks(document) if block.tag == tag)
    outside = [folder for folder in os.environ["PATH"].split(os.pathsep) if not (Path(folder) / "parley").exists()]
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{STOP}\n{session}"],
        cwd=clone,
        env={**os.environ, "PATH": os.pathsep.join(outside), "OMP_NUM_THREADS": "1", "VIRTUAL_ENV": "", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        timeout=1500,
    )
    assert done.returncode == 0, f"{document.relative_to(ROOT)} does not run as it stands:\n{done.stdout[-4000:]}"


def documents_to_run() -> list[Any]:
    """What a newcomer reads first in every test run; the how-tos, which take minutes more, with the slow tests.

    The quickstart explains the commands of the README, which run in any case.
    """
    return [
        pytest.param(one, id=str(one.relative_to(ROOT)), marks=[pytest.mark.slow] if _takes_long(one) else [])
        for one in DOCUMENTS
        if runs_here(one)
    ]


def _takes_long(document: Path) -> bool:
    return document.parent.name == "how-to" or document.name == "quickstart.md"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("document", documents_to_run())
def test_the_commands_of_a_document_run_in_order(document, tmp_path):
    clone = copy_repository(tmp_path / "parley")
    lend_environment(clone)
    run_document(document, clone)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_commands_of_the_credit_tutorial_run_in_order(tmp_path):
    if not CREDIT.exists():
        pytest.skip("the UCI credit table lies in ../shared/data, which is not here")
    clone = copy_repository(tmp_path / "parley")
    lend_environment(clone)
    run_document(ROOT / "docs" / "tutorial-credit.md", clone, "credit", CREDIT=str(CREDIT))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_commands_of_the_readme_run_in_a_fresh_clone_without_an_environment(tmp_path):
    run_document(ROOT / "README.md", copy_repository(tmp_path / "parley"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: str(one.relative_to(ROOT)))
def test_a_block_that_is_not_run_here_says_who_runs_it(document):
    unknown = {block.tag for block in blocks(document)} - ELSEWHERE - {""}
    assert not unknown, f"{document.name} has blocks for {unknown}; there are {sorted(ELSEWHERE)}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: str(one.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(document):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text())
    inside = [link for link in links if "://" not in link]
    assert [link for link in inside if not (document.parent / link).exists()] == []


def test_the_commands_that_tidy_up_do_what_the_page_says(federation):
    """Of docs/operations.md, on two runs of the federation that other tests share."""
    address = ["--address", federation.addresses["coordinator"], "--identity", str(federation.identity("client"))]
    (commands,) = [block.text for block in blocks(ROOT / "docs" / "operations.md") if "parley run tag" in block.text]
    with federation.connect() as client:
        made = [client.start(spec(name="digits", train__upper__steps=1)) for _ in range(2)]
        for run in made:
            run.result()
        first, second = (run.run_id for run in made)
        outputs = []
        for line in commands.replace("digits-1a2b3c4d", first).replace("digits-5e6f7a8b", second).splitlines():
            program, *words = shlex.split(line, comments=True)
            assert program == "parley"
            result = CliRunner().invoke(app, [*words, *address])
            assert result.exit_code == 0, f"{line}: {result.output}"
            outputs.append(result.output)
        _, listed, compared, _, _ = outputs
        assert first in listed
        assert second not in listed
        assert first in compared
        assert second in compared
        assert client.run(first).message.tags == ["baseline"]
        with pytest.raises(RequestRefused, match="RUN_UNKNOWN"):
            client.run(second)
