"""The shorthand for a schema: `{"fields": {"country": "string", "signup_at": "timestamp"}}`."""

from collections.abc import Mapping
from typing import Any

import orjson

from pulse_pipelines.domain.not_json import clearer
from pulse_pipelines.domain.roles import ACTOR, EVENT_TYPE
from pulse_pipelines.domain.schemas.schema import DEFAULT_DRAFT
from pulse_resources.errors import UserError

TYPES: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "number": {"type": "number"},
    "integer": {"type": "integer"},
    "boolean": {"type": "boolean"},
    "timestamp": {"type": "string", "format": "date-time"},
    "date": {"type": "string", "format": "date"},
}
_COPIED = ("title", "description", ACTOR, EVENT_TYPE)
_KEYS = {"fields", "required", *_COPIED}


def is_shorthand(document: object) -> bool:
    """Whether a document is in the shorthand, not a JSON Schema."""
    return isinstance(document, dict) and "fields" in document and "type" not in document


def write_out(content: bytes) -> str:
    """The JSON Schema in a file: as it is, or expanded from the shorthand. Raises UserError."""
    try:
        document = orjson.loads(content)
        return orjson.dumps(expand(document)).decode() if is_shorthand(document) else content.decode()
    except ValueError as error:
        raise UserError(f"the schema is not JSON: {clearer(content, error)}") from error


def expand(short: Mapping[str, Any]) -> dict[str, Any]:
    """Expand the shorthand to a JSON Schema; fields are optional unless `required` lists them.

    Raises:
        UserError: an unknown key or type, or a required field that is not declared.
    """
    fields, required = short.get("fields"), short.get("required", [])
    if unknown := sorted(map(str, short.keys() - _KEYS)):
        raise UserError(f"the shorthand has no {unknown[0]!r}", fix=f"It has: {', '.join(sorted(_KEYS))}")
    if not isinstance(fields, dict) or not fields:
        raise UserError('"fields" must name at least one field and its type')
    for name, kind in fields.items():
        if not isinstance(kind, str) or kind not in TYPES:
            actual = f": {kind[:50]!r} is none" if isinstance(kind, str) else ""
            raise UserError(
                f"field {name!r} has no known type{actual}", fix=f"Use one of: {', '.join(TYPES)}"
            )
    if not isinstance(required, list) or not set(map(str, required)) <= fields.keys():
        raise UserError('"required" must list declared fields')
    return {
        "$schema": DEFAULT_DRAFT,
        "type": "object",
        **{key: short[key] for key in _COPIED if key in short},
        "properties": {name: dict(TYPES[kind]) for name, kind in fields.items()},
        **({"required": required} if required else {}),
    }
