"""The small REST interface of deployed models: what a request holds, and the OpenAPI document that says it."""

import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from parley.dashboard.views import FeaturesView, Refused

WRONG = (
    'send a JSON object such as {"ids": ["17", "42"]}, and where you bring a party\'s features along "features": '
    "{PARTY: {COLUMN: [value of each row, …]}}"
)
_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_REFUSAL = {"$ref": "#/components/schemas/Refusal"}


def asked_rows(body: bytes) -> tuple[list[str], list[FeaturesView]]:
    """The ids of a request, and the features that it brings along."""
    try:
        content = json.loads(body)
        ids, features = content["ids"], content.get("features", {})
        blocks = [_block(party, columns, len(ids)) for party, columns in features.items()]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused(400, "MESSAGE_INVALID", WRONG) from None
    if not isinstance(ids, list) or not all(_is_id(each) for each in ids):
        raise Refused(400, "MESSAGE_INVALID", WRONG)
    return [str(each) for each in ids], blocks


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _block(party: str, columns: dict[str, Sequence[Any]], rows: int) -> FeaturesView:
    if any(not isinstance(values, list) or len(values) != rows for values in columns.values()):
        raise Refused(400, "MESSAGE_INVALID", f"features of {party:.64}: give each column a value for each row")
    values = [_spelt(values[row]) for row in range(rows) for values in columns.values()]
    return FeaturesView(party, list(columns), values)


def _spelt(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("a feature is a number, a text, or null")
    return str(value)


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _answer(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_REFUSALS = {
    "400": _answer("The request is malformed.", _REFUSAL),
    "401": _answer("The token is missing or wrong.", _REFUSAL),
    "403": _answer("The token lacks the permission, a party's policy refuses, or a header is missing.", _REFUSAL),
    "404": _answer("Nothing is deployed under this name.", _REFUSAL),
    "409": _answer("A party has no such row, or its policy declines it; `reason` says which.", _REFUSAL),
    "413": _answer("The body is too large.", _REFUSAL),
    "429": _answer("A party has been asked for as many rows as its policy allows for now.", _REFUSAL),
    "503": _answer("A party is away; try again.", _REFUSAL),
}
_COUNT = {"type": "integer"}
OPENAPI: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Parley: deployed models", "version": version("parley-fl")},
    "security": [{"token": []}],
    "paths": {
        "/api/deployments": {
            "get": {
                "summary": "List what is deployed",
                "operationId": "listDeployments",
                "responses": {
                    "200": _answer(
                        "Every deployment, by name.",
                        {"type": "array", "items": {"$ref": "#/components/schemas/Deployment"}},
                    ),
                    **{code: _REFUSALS[code] for code in ("401", "403")},
                },
            }
        },
        "/api/deployments/{name}/predictions": {
            "post": {
                "summary": "Predict rows with a deployed model",
                "operationId": "predictRows",
                "parameters": [
                    {"name": "name", "in": "path", "required": True, "schema": _TEXT},
                    {
                        "name": "x-parley",
                        "in": "header",
                        "required": True,
                        "description": "Any value: a foreign web page cannot send it.",
                        "schema": _TEXT,
                    },
                ],
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Rows"}}},
                },
                "responses": {
                    "200": _answer("Scores, in the order of ids.", {"$ref": "#/components/schemas/Scores"}),
                    **_REFUSALS,
                },
            }
        },
    },
    "components": {
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        "schemas": {
            "Rows": {
                "type": "object",
                "required": ["ids"],
                "properties": {
                    "ids": {"type": "array", "minItems": 1, "items": {"type": ["string", "integer"]}},
                    "features": {
                        "type": "object",
                        "description": "Blocks that the caller has itself: by party and column, a value of each row.",
                        "additionalProperties": {
                            "type": "object",
                            "additionalProperties": {
                                "type": "array",
                                "items": {"type": ["string", "number", "null"]},
                            },
                        },
                    },
                },
            },
            "Scores": _object(
                ids=_TEXTS,
                scores={"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
                classes=_TEXTS,
                run_id=_TEXT,
                version=_COUNT,
            ),
            "Deployment": _object(
                name=_TEXT,
                version=_COUNT,
                run_id=_TEXT,
                table=_TEXT,
                state={"enum": ["SERVING", "OPENING", "REFUSED"]},
                problem=_TEXT,
                earlier_versions={"type": "array", "items": _COUNT},
                deployed_by=_TEXT,
                deployed=_TEXT,
                rows=_COUNT,
                sums=_COUNT,
            ),
            "Refusal": _object(reason=_TEXT, message=_TEXT),
        },
    },
}
