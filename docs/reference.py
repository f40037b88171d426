"""The reference, generated from what it describes: commands, Python names, run specs and protos.

    python docs/reference.py            writes docs/reference/*.md

`tests/unit/docs/test_reference.py` fails while a page differs from what this program would write.
"""

import re
import tempfile
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

import griffe
import typer
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

from parley.cli import app
from parley.fields import SpecField, fields_of, spec_fields
from parley.services.coordinator.config import CoordinatorConfig
from parley.services.party.config import PartyConfig

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
MARKUP = re.compile(r"\[/?(?:bold|dim|cyan|italic)\]")
_MESSAGES, _SERVICES, _ENUMS = 4, 6, 5
"""Field numbers in FileDescriptorProto, by which comments are addressed."""
_FIELDS = 2


def pages() -> dict[str, str]:
    """Every page by its file name."""
    return {
        "commands.md": commands(),
        "python.md": python(),
        "specs.md": specs(),
        "configuration.md": configuration(),
        "protos.md": protos(),
    }


def commands() -> str:
    """Every command, with its arguments and options."""
    root = typer.main.get_command(app)
    lines = ["# Commands", "", "`parley COMMAND --help` says the same.", ""]
    lines += _command(root, "parley")
    return _page(lines)


def _command(command: typer.core.TyperCommand, name: str) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner is not None and name != "parley":
        yield from [f"## {name}", "", _text(command.help), ""]
    if inner is not None:
        for each in sorted(inner):
            yield from _command(inner[each], f"{name} {each}")
        return
    yield from [f"{'#' * len(name.split())} {name}", ""]
    yield from [_text(command.help), ""]
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    if shown:
        yield from ["| | | |", "|---|---|---|"]
    for parameter in shown:
        names = ", ".join(f"`{one}`" for one in parameter.opts)
        if parameter.param_type_name == "argument":
            names = f"`{parameter.name.upper()}`"
        needed = "required" if parameter.required else _default(parameter.default)
        yield f"| {names} | {needed} | {_cell(_text(getattr(parameter, 'help', '') or ''))} |"
    yield ""


def _default(value: object) -> str:
    if value is None or callable(value) or value in (False, "", ()) or "UNSET" in repr(value).upper():
        return ""
    return f"default `{value}`"


def _text(text: str | None) -> str:
    return MARKUP.sub("`", (text or "").strip()).replace("\b", "")


def python() -> str:
    """Every public name of the package `parley`."""
    import parley

    lines = ["# Python", "", "`import parley` offers these names.", ""]
    package = griffe.load("parley", search_paths=[str(ROOT)])
    for name in sorted(parley.__all__):
        found = package[f"{parley._HOMES[name].removeprefix('parley.')}.{name}"]
        lines += _object(found)
    return _page(lines)


def _object(found: griffe.Object) -> Iterator[str]:
    yield from [f"## parley.{found.name}", ""]
    if isinstance(found, griffe.Function):
        yield from [f"```text\n{found.name}{_signature(found)}\n```", ""]
    yield from [_docstring(found), ""]
    made = found.members.get("__init__")
    if isinstance(made, griffe.Function):
        yield from [f"```text\n{found.name}{_signature(made)}\n```", ""]
    for name, member in found.members.items():
        if name.startswith("_") or not member.docstring:
            continue
        if isinstance(member, griffe.Function) and "property" not in member.labels:
            heading = f"`{name}{_signature(member)}`"
        else:
            heading = f"`{name}`: `{member.annotation}`"
        yield f"- {heading}: {' '.join(_docstring(member).split())}"
    yield ""


def _signature(function: griffe.Function) -> str:
    shown = []
    for parameter in function.parameters:
        if parameter.name == "self":
            continue
        kind = f": {parameter.annotation}" if parameter.annotation else ""
        shown.append(f"{parameter.name}{kind}" + (f" = {parameter.default}" if parameter.default else ""))
    return f"({', '.join(shown)}) -> {function.returns}" if function.returns else f"({', '.join(shown)})"


def _docstring(found: griffe.Object) -> str:
    return found.docstring.value.strip() if found.docstring else ""


def specs() -> str:
    """Every field of a run spec."""
    lines = ["# Run specs", "", "`parley run fields` says the same. `[]` stands for each item of a list, a word in"]
    lines += ["brackets for the algorithm or kind that has the field.", ""]
    return _page([*lines, *_fields(spec_fields())])


def configuration() -> str:
    """Every field of a party's and of a coordinator's configuration."""
    lines = ["# Configuration", "", "A service reads one YAML file when it starts: `parley party --config party.yaml`,"]
    lines += [
        "`parley coordinator --config coordinator.yaml`. Paths are relative to the file. `NAME` stands for a name"
    ]
    lines += [
        "of your own, `[]` for each item of a list. `parley doctor` checks a file and says what is wrong with it.",
        "",
    ]
    for title, model in (("A party", PartyConfig), ("A coordinator", CoordinatorConfig)):
        lines += [f"## {title}", "", *_fields(fields_of(model)), ""]
    return _page(lines)


def _fields(fields: Sequence[SpecField]) -> Iterator[str]:
    yield from ["| field | what may be written | default | meaning |", "|---|---|---|---|"]
    for field in fields:
        yield f"| `{field.path}` | {_cell(field.kind)} | {_cell(field.default)} | {_cell(field.meaning)} |"


def protos() -> str:
    """Every service and message, with the comments of the proto files."""
    lines = ["# Protos", "", "From `protos/`. Every service answers gRPC reflection.", ""]
    for file in sorted(_descriptors().file, key=lambda file: file.package):
        if file.package.startswith("parley."):
            lines += _proto(file)
    return _page(lines)


def _descriptors() -> FileDescriptorSet:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "all.bin"
        well_known = resources.files("grpc_tools") / "_proto"
        sources = [str(path) for path in sorted((ROOT / "protos").rglob("*.proto"))]
        includes = [f"-I{ROOT / 'protos'}", f"-I{well_known}", "--include_source_info", f"--descriptor_set_out={out}"]
        if protoc.main(["protoc", *includes, *sources]) != 0:
            raise SystemExit("protoc refused the protos; its message is above")
        return FileDescriptorSet.FromString(out.read_bytes())


def _proto(file: FileDescriptorProto) -> Iterator[str]:
    comments = {tuple(place.path): place.leading_comments for place in file.source_code_info.location}

    def comment_on(*path: int) -> str:
        return " ".join(comments.get(path, "").split())

    yield from [f"## {file.package}", "", f"`{file.name}`", ""]
    for s, service in enumerate(file.service):
        yield from [f"### {service.name}", "", comment_on(_SERVICES, s), "", "| RPC | | |", "|---|---|---|"]
        for m, method in enumerate(service.method):
            asked, answered = _short(method.input_type), _short(method.output_type)
            asked = f"stream {asked}" if method.client_streaming else asked
            answered = f"stream {answered}" if method.server_streaming else answered
            yield f"| `{method.name}` | `{asked}` → `{answered}` | {_cell(comment_on(_SERVICES, s, _FIELDS, m))} |"
        yield ""
    for m, message in enumerate(file.message_type):
        yield from [f"### {message.name}", "", comment_on(_MESSAGES, m), ""]
        if message.field:
            yield from ["| field | type | |", "|---|---|---|"]
        for f, field in enumerate(message.field):
            kind = _short(field.type_name) if field.type_name else field.Type.Name(field.type)[5:].lower()
            kind = f"repeated {kind}" if field.label == field.LABEL_REPEATED else kind
            yield f"| `{field.name}` = {field.number} | {kind} | {_cell(comment_on(_MESSAGES, m, _FIELDS, f))} |"
        yield ""
    for e, enum in enumerate(file.enum_type):
        yield from [f"### {enum.name}", "", comment_on(_ENUMS, e), "", "| value | |", "|---|---|"]
        for v, value in enumerate(enum.value):
            yield f"| `{value.name}` = {value.number} | {_cell(comment_on(_ENUMS, e, _FIELDS, v))} |"
        yield ""


def _short(type_name: str) -> str:
    return type_name.rsplit(".", 1)[-1]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _page(lines: list[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for page, content in pages().items():
        (FOLDER / page).write_text(content)
