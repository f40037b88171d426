"""Hashes of an image's wheels: from what pip would install, on every platform, as pip reads them."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HASHES = runpy.run_path(str(ROOT / "deploy" / "hashes.py"))


def resolving(monkeypatch, **machines):
    monkeypatch.setitem(HASHES["packages"].__globals__, "_resolved", lambda _, machine: machines[machine])


def test_a_package_has_the_hash_of_each_platforms_wheel(monkeypatch):
    resolving(monkeypatch, x86_64=[("numpy", "2.0", "a" * 64)], aarch64=[("numpy", "2.0", "b" * 64)])
    found = HASHES["packages"]("party")
    assert found == {"numpy": ("2.0", {"a" * 64, "b" * 64})}
    lines = HASHES["written"](found).splitlines()
    assert lines[1:] == ["numpy==2.0 \\", f"    --hash=sha256:{'a' * 64} \\", f"    --hash=sha256:{'b' * 64}"]


def test_platforms_with_different_versions_are_refused(monkeypatch):
    resolving(monkeypatch, x86_64=[("numpy", "2.0", "a" * 64)], aarch64=[("numpy", "2.1", "b" * 64)])
    with pytest.raises(SystemExit, match=r"numpy is 2\.0 on one platform and 2\.1"):
        HASHES["packages"]("party")


def pins(path):
    """Versions by name, of lines `name==version`."""
    found = re.findall(r"^([\w.-]+)==([\w.+!-]+)", path.read_text(), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


@pytest.mark.parametrize("image", HASHES["IMAGES"])
def test_hashes_that_are_kept_are_of_what_the_image_installs(image):
    folder = ROOT / "deploy" / "requirements"
    kept, pinned = pins(folder / f"{image}.hashed.txt"), pins(ROOT / "constraints.txt")
    assert {name: version for name, version in kept.items() if pinned.get(name) != version} == {}, "make hashes"
    wanted = [line for part in HASHES["IMAGES"][image] for line in (folder / f"{part}.txt").read_text().splitlines()]
    names = {re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", line)[0]).lower() for line in wanted if line[:1].isalpha()}
    assert names <= kept.keys(), "make hashes"
    assert "://" not in (folder / f"{image}.hashed.txt").read_text(), "hashes hold wherever a wheel comes from"
