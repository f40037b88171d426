"""Pictures of the command line for the documentation, from real commands on a real federation.

    python docs/terminal_pictures.py [--out docs/images]

Each command runs in a terminal of its own (a pseudo-terminal behind an emulator), and what its screen shows becomes an
SVG. Needs the development dependencies.
"""

import argparse
import itertools
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from importlib import resources
from pathlib import Path
from termios import TIOCSWINSZ

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

from parley.local import LocalFederation
from parley.splitting import split_dataset

PARTIES = ("bank", "shop", "telco")
SPEC = (resources.files("parley") / "demo.yaml").read_text()
COLUMNS, LINES = 110, 46
PARLEY = str(Path(sys.executable).parent / "parley")
WEB_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""rich's picture would load a font from elsewhere; any monospaced one does."""
INTERPRETER = re.compile(r"/\S*/bin/python[\d.]*")
PICTURED = re.compile(r"/\S*/parley-pictures-\w+")
COLOURS = {"brown": "yellow", "brightbrown": "bright_yellow"}
"""pyte's words for colours where rich has others."""


def screen_of(*command: str, folder: Path, environment: dict[str, str], until: str | None = None) -> pyte.Screen:
    """The screen after a command has ended, or as soon as it shows `until`."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    files = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with subprocess.Popen([PARLEY, *command], cwd=folder, env=environment, **files) as process:  # noqa: S603 (ours)
        os.close(theirs)
        while select.select([ours], [], [], 120)[0]:
            try:
                stream.feed(os.read(ours, 65536))
            except OSError:  # the other side has closed
                break
            if until is not None and any(until in line for line in screen.display):
                time.sleep(0.3)
                process.terminate()
                break
    os.close(ours)
    return screen


def draw(screen: pyte.Screen, title: str, path: Path) -> None:
    """Write a screen as SVG, without the empty lines below."""
    last = max((row for row, line in enumerate(screen.display) if line.strip()), default=0)
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    for row in range(last + 1):
        line, cells = Text(), [screen.buffer[row][column] for column in range(COLUMNS)]
        for (colour, bold), alike in itertools.groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
            line.append(_anywhere("".join(cell.data for cell in alike)), Style(color=_colour(colour), bold=bold))
        console.print(line, overflow="crop", no_wrap=True)
    # A fixed id: the same screen gives the same file.
    picture = console.export_svg(title=title, theme=MONOKAI, unique_id=path.stem)
    path.write_text(WEB_FONT.sub("", picture))


def _anywhere(text: str) -> str:
    """Without the paths of the machine that draws."""
    return PICTURED.sub("~/federation", INTERPRETER.sub(".venv/bin/python", text))


def _colour(name: str) -> str | None:
    if name == "default":
        return None
    if len(name) == 6 and all(letter in "0123456789abcdef" for letter in name):
        return f"#{name}"
    return COLOURS.get(name, name.replace("bright", "bright_"))


@contextmanager
def federation() -> Iterator[tuple[Path, dict[str, str]]]:
    """Three parties and a coordinator, and an environment in which `parley` finds them."""
    with tempfile.TemporaryDirectory(prefix="parley-pictures-") as name:
        folder = Path(name)
        split_dataset("digits", PARTIES, folder / "data")
        tables = {party: {"train": {"path": folder / "data" / f"{party}.parquet"}} for party in PARTIES}
        labels = {"train": {"path": folder / "data" / "labels.parquet"}}
        with LocalFederation(folder, tables, labels, ready_seconds=300) as local:
            yield (
                folder,
                {
                    **os.environ,
                    "TERM": "xterm-256color",
                    "COLUMNS": str(COLUMNS),
                    "PARLEY_ADDRESS": local.addresses["coordinator"],
                    "PARLEY_IDENTITY": str(local.identity("client")),
                },
            )


def main() -> None:
    """Draw every picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "images", help="where the pictures go")
    out = parser.parse_args().out
    with federation() as (folder, environment):
        spec, mistaken = folder / "digits.yaml", folder / "mistaken.yaml"
        spec.write_text(SPEC)
        mistaken.write_text(SPEC.replace("regularisation:", "regularization:").replace("epsilon: 6,", "epsilon: -6,"))
        run = subprocess.check_output([PARLEY, "run", "start", spec], env=environment, text=True).strip()  # noqa: S603
        commands = {
            "terminal-watch": (["run", "watch", run], "step 15"),
            "terminal-help": (["--help"], None),
            "terminal-check": (["run", "check", mistaken.name], None),
            "terminal-parties": (["parties"], None),
            "terminal-doctor": (["doctor"], None),
            "terminal-ledger": (["ledger", "show", run], None),
        }
        for picture, (command, until) in commands.items():
            shown = screen_of(*command, folder=folder, environment=environment, until=until)
            draw(shown, " ".join(["parley", *command]), out.resolve() / f"{picture}.svg")
            if until is not None:  # the others show the run when it has ended
                subprocess.check_output([PARLEY, "run", "watch", run], env=environment)  # noqa: S603


if __name__ == "__main__":
    main()
