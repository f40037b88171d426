"""What deploy/Dockerfile puts into each image: the role's own code, what it imports, and nothing of the other role."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
REQUIREMENTS = ROOT / "deploy" / "requirements"
ROOMS = ("contracts", "numerics", "privacy", "protocols", "services", "services.wire", "spec", "storage", "tables")
COMMON = {"parley", *(f"parley.{room}" for room in ROOMS)}
PACKAGES = {
    "party": COMMON | {"parley.party", "parley.services.party"},
    "coordinator": COMMON
    | {"parley.coordinator", "parley.dashboard", "parley.services.coordinator", "parley.services.relay"},
}
DISTRIBUTIONS = {
    "dp_accounting": "dp-accounting",
    "google": "protobuf",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "grpc_status": "grpcio-status",
    "prometheus_client": "prometheus-client",
    "pydantic_core": "pydantic",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Distributions whose modules have another name."""
EXTRAS = {"mlflow", "opentelemetry", "ray", "tensorboardX"}
"""What a service imports only where its configuration asks for it, and says how to install; images are without."""


def stage(name: str) -> str:
    """The instructions of one stage."""
    found = re.search(rf"^FROM \S+ AS {name}$(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert found, f"no stage {name}"
    return found[1]


def copied(name: str) -> set[str]:
    """The packages that a stage copies."""
    targets = re.findall(r"^COPY .*?/opt/parley/(parley(?:/[a-z]+)*)/?$", stage(name), re.MULTILINE)
    return {target.replace("/", ".") for target in targets}


def required(*names: str) -> set[str]:
    """The distributions that requirement files name."""
    lines = [line for name in names for line in (REQUIREMENTS / f"{name}.txt").read_text().splitlines()]
    return {re.split(r"[\[>=<]", line)[0].strip() for line in lines if line and not line.startswith("#")}


def imports_of(package: str) -> set[str]:
    """Distributions of all modules that a package's own files import, wherever in the file."""
    found: set[str] = set()
    folder = ROOT / "src" / package.replace(".", "/")
    # An image gets only some of the services, each of which is looked at by itself.
    for path in folder.glob("*.py") if package == "parley.services" else folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.split(".")[0])
    return {DISTRIBUTIONS.get(name, name) for name in found - sys.stdlib_module_names}


@pytest.mark.parametrize("image", PACKAGES)
def test_an_image_gets_its_own_role_and_nothing_of_the_other(image):
    assert copied(image) == PACKAGES[image]


@pytest.mark.parametrize("image", PACKAGES)
def test_what_an_image_copies_is_sent_to_its_builder(image):
    sent = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    sources = re.findall(r"^COPY (?!--from)(\S+) ", stage(image), re.MULTILINE)
    unsent = {source for source in sources if not any(f"{source}/".startswith(f"{each}/") for each in sent)}
    assert not unsent, f".dockerignore leaves out {unsent}"


def test_links_to_rooms_are_not_sent_to_the_builder():
    """An image gets a room as a directory; a link of the same name would not go over it."""
    ignored = set((ROOT / ".dockerignore").read_text().splitlines())
    links = {f"src/parley/{path.name}" for path in (ROOT / "src" / "parley").iterdir() if path.is_symlink()}
    assert links
    assert links <= ignored


@pytest.mark.parametrize("image", PACKAGES)
def test_an_image_installs_what_its_service_imports(image):
    installed = required("common", image) | ({"torch"} if image == "party" else set())
    for package in PACKAGES[image] - {"parley.contracts", "parley"}:  # the command imports what it needs when it runs
        missing = imports_of(package) - {"parley"} - installed - EXTRAS
        if image == "coordinator" and package == "parley.numerics":
            missing.discard("torch")  # its torch modules are the party's; the next test watches them
        if image == "coordinator" and package == "parley.tables":
            missing.discard("duckdb")  # sorts rows that outgrow a party's `memory`
        assert not missing, f"{package} imports {missing}: add it to deploy/requirements"


def test_services_start_without_the_extras():
    code = "import sys, parley.services.{0}.__main__; sys.exit(bool({1!r} & sys.modules.keys()))"
    for role in PACKAGES:
        done = subprocess.run([sys.executable, "-c", code.format(role, EXTRAS)], cwd=ROOT, timeout=120)
        assert done.returncode == 0, role


def test_a_coordinator_imports_no_torch():
    code = "import sys, parley.services.coordinator.__main__, parley.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120).returncode == 0


def test_every_installed_package_has_a_pinned_version():
    pinned = {
        line.split("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    assert required("common", "party", "coordinator", "stubs") - pinned == set()


def test_the_images_install_the_pinned_torch():
    pinned = re.search(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    assert f"ARG TORCH_VERSION={pinned[1]}\n" in DOCKERFILE


def test_the_build_needs_nothing_but_a_base_image_and_a_package_index():
    assert "# syntax" not in DOCKERFILE
    assert "@sha256" not in DOCKERFILE
    assert "--mount" not in DOCKERFILE
    assert not re.search(r"\bapt(-get)?\b", DOCKERFILE)


@pytest.mark.parametrize("image", PACKAGES)
def test_an_image_runs_as_a_numbered_user_and_checks_its_own_health(image):
    instructions = stage(image)
    assert instructions.index("RUN ") < instructions.index("USER 10001:10001"), "nothing is installed by the user"
    assert "HEALTHCHECK" in instructions
    assert 'CMD ["healthy"]' in instructions
