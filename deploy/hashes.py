"""Write deploy/requirements/IMAGE.hashed.txt: every package of an image, pinned, with the hashes of its wheels.

    python deploy/hashes.py [IMAGE …]      # asks pip's own index; constraints.txt says which versions

`pip download --require-hashes -r …` then refuses a wheel that is not one of these (docs/deploy.md).
Run it again when constraints.txt or a requirements file changes; a test compares the versions.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
REQUIREMENTS = ROOT / "deploy" / "requirements"
IMAGES = {"party": ("common", "party"), "coordinator": ("common", "coordinator"), "stubs": ("stubs",)}
"""Requirements of each image, and of the stage that only builds."""
PLATFORMS = ("x86_64", "aarch64")
GLIBC = (17, 24, 26, 27, 28, 31, 34, 36)
"""Minor versions of glibc 2 that the images' wheels may ask for; Debian 12 has 36."""
TORCH_NEEDS = ("filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy", "typing-extensions")
"""torch itself is built for each kind of machine, and comes from an index of its own: its hash stands there."""

Packages = dict[str, tuple[str, set[str]]]
"""Version and hashes by name."""


def packages(image: str) -> Packages:
    """What pip would install into an image, on every platform."""
    found: Packages = {}
    for machine in PLATFORMS:
        for name, version, digest in _resolved(image, machine):
            known, hashes = found.setdefault(name, (version, set()))
            if known != version:
                raise SystemExit(f"error: {name} is {known} on one platform and {version} on {machine}: pin it")
            hashes.add(digest)
    return found


def written(found: Mapping[str, tuple[str, set[str]]]) -> str:
    """As pip reads it."""
    lines = [
        f"{name}=={version} " + " ".join(f"\\\n    --hash=sha256:{digest}" for digest in sorted(hashes))
        for name, (version, hashes) in sorted(found.items())
    ]
    return "# Written by deploy/hashes.py.\n" + "\n".join(lines) + "\n"


def _resolved(image: str, machine: str) -> Iterator[tuple[str, str, str]]:
    files = [part for name in IMAGES[image] for part in ("-r", str(REQUIREMENTS / f"{name}.txt"))]
    files += TORCH_NEEDS if image == "party" else ()
    platforms = [part for minor in reversed(GLIBC) for part in ("--platform", f"manylinux_2_{minor}_{machine}")]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp", *platforms]
        command += ["--platform", f"manylinux2014_{machine}", "--target", folder, "--report", f"{folder}/report.json"]
        subprocess.run([*command, "-c", str(ROOT / "constraints.txt"), *files], check=True)  # noqa: S603
        report = json.loads(Path(folder, "report.json").read_text())
    for each in report["install"]:
        yield (
            re.sub(r"[-_.]+", "-", each["metadata"]["name"]).lower(),
            each["metadata"]["version"],
            each["download_info"]["archive_info"]["hashes"]["sha256"],
        )


def main() -> None:
    """Write the file of each image that was named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="*", choices=[[], *IMAGES], default=[])
    for image in parser.parse_args().images or IMAGES:
        (REQUIREMENTS / f"{image}.hashed.txt").write_text(written(packages(image)))


if __name__ == "__main__":
    main()
