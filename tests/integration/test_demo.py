"""`parley demo` as a user runs it: a process of its own, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def services_of(marker: str) -> list[int]:
    """Processes whose environment carries `marker`: those that a demo has started."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:  # gone in the meantime, or another user's
            continue
    return found


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def start(out: Path, marker: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "parley", "demo", "--out", str(out), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PARLEY_DEMO_MARKER": marker}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=heed_interrupts,
    )


def heed_interrupts() -> None:
    """As at a terminal: whoever runs the tests in the background has told them, and their children, to ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="counts processes in /proc")


@needs_proc
def test_the_demo_reaches_92_percent_and_leaves_no_process(tmp_path):
    process = start(tmp_path, f"marker-{os.getpid()}-whole")
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    figures = json.loads((tmp_path / "demo.json").read_text())
    assert figures["accuracy"] >= 0.92  # label noise is fresh in each run: 0.955 to 0.972 in four draws
    assert abs(figures["accuracy"] - figures["pooled_accuracy"]) <= 0.012  # four rows in 360: sums in 32 bits
    assert figures["epsilon"] == pytest.approx(6)
    assert 1e6 < figures["bytes"] < 20e6
    assert figures["rounds"] <= 120
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert services_of(f"marker-{os.getpid()}-whole") == []


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_takes_its_processes_with_it(number, tmp_path):
    marker = f"marker-{os.getpid()}-{number.name}"
    process = start(tmp_path, marker, "--keep")
    deadline = time.monotonic() + 120
    while len(services_of(marker)) < 5 and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    assert len(services_of(marker)) == 5  # the demo, a coordinator and three parties
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number, output
    assert "Traceback" not in output
    assert services_of(marker) == []


def test_services_end_with_the_program_that_started_them_even_if_it_is_killed(tmp_path):
    program = (
        "import sys, time, pathlib\n"
        "from parley import LocalFederation\n"
        "with LocalFederation(pathlib.Path(sys.argv[1]), {}, {}) as local:\n"
        "    print(local.processes['coordinator'].pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as starter:
        service = int(starter.stdout.readline())
        starter.kill()
    deadline = time.monotonic() + 60
    while alive(service):
        assert time.monotonic() < deadline, f"process {service} outlives its federation"
        time.sleep(0.1)
