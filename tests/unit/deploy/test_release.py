"""deploy/release.py, in small repositories of its own kind."""

import runpy
import shutil
import subprocess
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[3]
tool = SimpleNamespace(**runpy.run_path(str(ROOT / "deploy" / "release.py")))
TODAY = date(2027, 1, 2)
VERSION = tool.current_version(ROOT)
UNRELEASED = f"# Changelog\n\n## [{VERSION}] - unreleased\n\n- New.\n\n## [0.0.9] - 2026-01-01\n"


def git(repository, *arguments):
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    done = subprocess.run(["git", "-C", repository, *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """The files that carry a version, on the way to the present one."""
    for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"):
        monkeypatch.setenv(name, "Test")
    for name in ("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "test@example.org")
    for name in (tool.PROJECT, tool.CHART):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    (tmp_path / tool.CHANGELOG).write_text(UNRELEASED)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "-m", "build: Begin")
    return tmp_path


def images(repository):
    return [path.name for path in (repository / tool.RELEASED).iterdir()]


def test_a_release_dates_the_changelog_keeps_the_protos_and_tags_the_commit(repository):
    assert tool.release(repository, TODAY) == f"v{VERSION}"
    assert tool.newest_section(repository) == (VERSION, "2027-01-02")
    assert images(repository) == [f"{VERSION}.binpb"]
    assert git(repository, "describe") == f"v{VERSION}"
    assert git(repository, "status", "--porcelain") == ""


def test_the_first_change_after_a_release_bumps_the_version_everywhere(repository):
    tool.release(repository, TODAY)
    tool.bump(repository, "9.0.0")
    assert tool.current_version(repository) == "9.0.0"
    assert (repository / tool.CHART).read_text().count("9.0.0") == 2
    assert tool.newest_section(repository) == ("9.0.0", "unreleased")
    assert f"## [{VERSION}] - 2027-01-02" in (repository / tool.CHANGELOG).read_text()
    assert images(repository) == [f"{VERSION}.binpb"], "which changes of 9.0.0 are compared with"


def test_a_version_is_released_once(repository):
    tool.release(repository, TODAY)
    with pytest.raises(tool.NotReleasable, match="released already"):
        tool.release(repository, TODAY)


def test_a_release_contains_what_was_committed(repository):
    (repository / tool.PROJECT).write_text((repository / tool.PROJECT).read_text() + "\n")
    with pytest.raises(tool.NotReleasable, match="not committed"):
        tool.release(repository, TODAY)
    assert git(repository, "tag") == ""


def test_a_release_says_what_is_new(repository):
    (repository / tool.CHANGELOG).write_text(UNRELEASED.replace(VERSION, "0.1.9"))
    git(repository, "commit", "--quiet", "--all", "-m", "docs: Forget to say it")
    with pytest.raises(tool.NotReleasable, match=r"does not begin with"):
        tool.release(repository, TODAY)
    assert git(repository, "tag") == ""


@pytest.mark.parametrize("version", ["next", "0.3", "0.0.1", VERSION])
def test_a_bump_goes_forward_by_three_numbers(repository, version):
    tool.release(repository, TODAY)
    with pytest.raises(tool.NotReleasable):
        tool.bump(repository, version)
    assert git(repository, "status", "--porcelain") == ""


def test_a_version_is_released_before_the_next_is_begun(repository):
    with pytest.raises(tool.NotReleasable, match="not released yet"):
        tool.bump(repository, "9.0.0")
