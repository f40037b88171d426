"""Hashes of an image's wheels: from what pip would install, on every platform, as pip reads them."""

import runpy
from pathlib import Path

import pytest

HASHES = runpy.run_path(str(Path(__file__).parents[3] / "deploy" / "hashes.py"))


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
