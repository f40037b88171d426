"""Bump and release: one version for pyproject.toml, the Helm chart, the changelog, the image of the protos and the tag.

    python deploy/release.py bump 0.3.0     the version to work on, in the first change after a release
    python deploy/release.py release        date the changelog, keep an image of the protos, commit and tag

`make bump VERSION=…` and `make release` run these, the latter behind all checks and tests. Nothing is pushed.
"""

import re
import subprocess
import sys
import tomllib
from datetime import UTC, date, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT, CHART, CHANGELOG = "pyproject.toml", "deploy/helm/parley/Chart.yaml", "CHANGELOG.md"
RELEASED = "protos/released"
"""Holds the image of the last release's protos, which `make check` compares the protos with."""
_SECTION = re.compile(r"^## \[(?P<version>[\d.]+)\] - (?P<date>\S+)$", re.MULTILINE)


class NotReleasable(Exception):
    """Why there can be no release now, and what to do."""


def current_version(root: Path) -> str:
    """The version that this tree is, or is on its way to."""
    return str(tomllib.loads((root / PROJECT).read_text())["project"]["version"])


def newest_section(root: Path) -> tuple[str, str]:
    """Version and date of the changelog's first section; the date is `unreleased` until the release."""
    found = _SECTION.search((root / CHANGELOG).read_text())
    if found is None:
        raise NotReleasable(f"{CHANGELOG} has no section `## [VERSION] - DATE`: add one")
    return found["version"], found["date"]


def bump(root: Path, version: str) -> None:
    """Write the version everywhere, and give it a section of the changelog."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise NotReleasable(f"{version!r} is no version: write three numbers, as in 0.3.0")
    if _numbers(version) <= _numbers(current_version(root)):
        raise NotReleasable(f"{version} does not come after {current_version(root)}: choose a later one")
    latest, dated = newest_section(root)
    if dated == "unreleased":
        raise NotReleasable(f"{latest} is not released yet: `make release` first")
    _replace(root / PROJECT, r'^version = ".*"$', f'version = "{version}"')
    _replace(root / CHART, r"^version: .*$", f"version: {version}")
    _replace(root / CHART, r"^appVersion: .*$", f'appVersion: "{version}"')
    heading = f"## [{version}] - unreleased\n\n## [{latest}] - {dated}"
    _replace(root / CHANGELOG, rf"^## \[{re.escape(latest)}\] - {dated}$", heading)


def release(root: Path, today: date) -> str:
    """Commit and tag the version of this tree, and return the tag."""
    version = current_version(root)
    tag = f"v{version}"
    if _git(root, "status", "--porcelain"):
        raise NotReleasable("there are changes that are not committed: commit them first")
    if _git(root, "tag", "--list", tag):
        raise NotReleasable(f"{tag} is released already: `make bump VERSION=…` first")
    if newest_section(root) != (version, "unreleased"):
        raise NotReleasable(f"{CHANGELOG} does not begin with `## [{version}] - unreleased`: say there what is new")
    _replace(root / CHANGELOG, rf"^## \[{re.escape(version)}\] - unreleased$", f"## [{version}] - {today.isoformat()}")
    keep_protos(root, version)
    _git(root, "add", "--all", CHANGELOG, RELEASED)
    _git(root, "commit", "--quiet", "-m", f"release: Parley {version}")
    _git(root, "tag", "--annotate", tag, "-m", f"Parley {version}")
    return tag


def keep_protos(root: Path, version: str) -> None:
    """Put an image of the protos in the place of the last release's."""
    for older in (root / RELEASED).glob("*.binpb"):
        older.unlink()
    buf = Path(sys.executable).parent / "buf"
    image = root / RELEASED / f"{version}.binpb"
    subprocess.run([buf, "build", root / "protos", "--exclude-source-info", "-o", image], check=True)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _replace(path: Path, pattern: str, line: str) -> None:
    text, count = re.subn(pattern, lambda _: line, path.read_text(), flags=re.MULTILINE)
    if count != 1:
        raise NotReleasable(f"{path} has {count} lines like {pattern}, and should have one")
    path.write_text(text)


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", root, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def main(arguments: list[str]) -> None:
    """Do what the command line says."""
    try:
        match arguments:
            case ["bump", version]:
                bump(ROOT, version)
            case ["release"]:
                tag = release(ROOT, datetime.now(UTC).date())
                sys.stdout.write(f"{tag} is committed and tagged here: `git push --follow-tags` publishes it\n")
            case _:
                raise SystemExit(__doc__)
    except NotReleasable as reason:
        raise SystemExit(f"error: {reason}") from reason


if __name__ == "__main__":
    main(sys.argv[1:])
