"""The contract suite fails where an algorithm breaks the contract: the template, broken in one place at a time."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TEMPLATE = Path(__file__).parents[2] / "examples" / "new-algorithm"
BROKEN = {
    "a sum that is not of the data alone": (
        "party.py",
        "@ self._training).ravel()",
        "@ self._training).ravel() * (1 + 1e-3 * np.random.default_rng().random())",
        ["test_federated_equals_pooled", "test_killed_and_resumed_it_ends_with_the_same_bits"],
    ),
    "a state that a checkpoint does not hold": (
        "party.py",
        'State(checkpoint["coefficients"].numpy(), int(checkpoint["k"]))',
        'State(0 * checkpoint["coefficients"].numpy(), int(checkpoint["k"]))',
        ["test_killed_and_resumed_it_ends_with_the_same_bits"],
    ),
    "an error that has no name": (
        "party.py",
        "raise MessageInvalid(",
        "raise RuntimeError(",
        ["test_a_changed_message_is_answered_or_refused_by_name"],
    ),
    "a decoder that lets another error out": (
        "codec.py",
        "phase, coefficients = named(_PHASES, message.phase), None",
        "phase, coefficients = {code: name for name, code in _PHASES.items()}[message.phase], None",
        ["test_an_instruction_is_decoded_or_refused_by_name"],
    ),
    "a field that nobody declared": (
        "crossings.py",
        '"round phase"',
        '"round"',
        ["test_every_field_of_its_messages", "test_every_field_that_leaves_in_a_run_is_in_the_manifest"],
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_algorithm_does_not_pass(how, tmp_path):
    file, right, wrong, noticing = BROKEN[how]
    folder = shutil.copytree(TEMPLATE, tmp_path / "ridge")
    module = folder / "src" / "federated_ridge" / file
    assert right in module.read_text()
    module.write_text(module.read_text().replace(right, wrong))
    # Stubs and entry point beside the sources, which are then as good as installed.
    subprocess.run(
        [sys.executable, "setup.py", "-q", "egg_info"], cwd=folder, check=True, capture_output=True, timeout=120
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", " or ".join(noticing), "tests"]
    environment = os.environ | {"PYTHONPATH": str(folder / "src")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1, done.stdout
    for test in noticing:
        assert any(line.startswith("FAILED") and test in line for line in done.stdout.splitlines()), done.stdout[-4000:]
