"""What a message tells a user to write can be written."""

import ast
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

import parley
from parley.services.coordinator.config import CoordinatorConfig
from parley.services.party.config import PartyConfig
from parley.spec.nearest import _sections
from parley.spec.run import RunSpec

ROOMS = ["tables", "services/party", "services/coordinator", "services/wire", "spec"]
NOT_FIELDS = {
    # columns and arrays of files, and statements
    "x", "features", "SELECT", "label",
    # words of the wire's own messages, for whoever writes a client
    "attach", "upper_sizes", "request_id",
    # files
    "ca", "pem", "request",
    # values
    "lower", "true", "pairwise", "plain", "refuse", "once", "per_step", "off", "newton", "sgd",
}  # fmt: skip
FIELD = re.compile(r"`([a-z_.]+)(?::[^`]*)?`")


def fields(model: type[BaseModel], found=None):
    """Names of all fields below a model."""
    found = set() if found is None else found
    for name, field in model.model_fields.items():
        if name not in found or list(_sections(field.annotation)):
            found.add(name)
            for section in _sections(field.annotation):
                if section is not model:
                    fields(section, found)
    return found


def messages(source: Path):
    """Texts in a module that are no docstrings."""
    tree = ast.parse(source.read_text())
    found = [getattr(node, "body", None) for node in ast.walk(tree)]
    bodies = [body for body in found if isinstance(body, list)]
    docstrings = {id(line.value) for body in bodies for line in body if isinstance(line, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


@pytest.mark.parametrize("room", ROOMS)
def test_every_field_that_a_message_names_exists(room):
    known = fields(PartyConfig) | fields(CoordinatorConfig) | fields(RunSpec) | NOT_FIELDS
    folder = Path(parley.__file__).parent / room
    named = {
        (source.name, part)
        for source in folder.glob("*.py")
        for text in messages(source)
        for name in FIELD.findall(text)
        for part in name.split(".")
    }
    assert named, f"{room} names no field: is this test still looking at the right place?"
    assert not sorted((file, name) for file, name in named if name not in known)
