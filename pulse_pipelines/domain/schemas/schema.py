"""Published JSON Schemas: address, checks before publication, and compiled validators."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jsonschema_rs
import orjson

from pulse_pipelines.domain import json_values
from pulse_pipelines.domain.event import json_pointer, nesting
from pulse_pipelines.domain.not_json import clearer
from pulse_pipelines.domain.roles import check_roles
from pulse_pipelines.domain.schemas.bundle import bundled
from pulse_pipelines.domain.schemas.cheap_checks import guarded
from pulse_pipelines.domain.schemas.columns import columns
from pulse_pipelines.domain.schemas.cost import Bound, check_cost
from pulse_pipelines.domain.schemas.exact_numbers import check_numbers
from pulse_pipelines.domain.schemas.patterns import LINEAR
from pulse_pipelines.domain.schemas.safety import check_bounds, check_patterns
from pulse_pipelines.domain.schemas.shapes import EVERY, Shapes
from pulse_pipelines.domain.schemas.unique_items import UniqueItems
from pulse_resources.errors import UserError, meant

DEFAULT_DRAFT = "https://json-schema.org/draft/2020-12/schema"
DRAFTS = (
    DEFAULT_DRAFT,
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
)
MAX_BYTES = 524_288
"""Maximum size of a document without white space; with it, four times as much."""
MAX_DEPTH = 64
"""Maximum nesting of a document: validators and table schemas are walked recursively."""
MAX_POINTER = 500
"""Characters of a pointer in an error."""
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_FLATTER = (
    "Move what is inside to $defs and refer to it by $ref, or declare it as an object without properties"
)
OF_OBJECTS = frozenset(
    ("properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties")
)
"""Keywords any of which shows that a schema without a type is meant for objects."""


@dataclass(frozen=True)
class SchemaUri:
    """`pulse://<tenant>/<name>/<version>`."""

    tenant: str
    name: str
    version: int

    def __str__(self) -> str:
        return f"pulse://{self.tenant}/{self.name}/{self.version}"

    @classmethod
    def parse(cls, text: str) -> "SchemaUri":
        """Parse a schema address. Raises UserError if it is malformed."""
        match = re.fullmatch(r"pulse://([a-z][a-z0-9_]*)/([a-z][a-z0-9_]*)/([1-9][0-9]{0,8})", text)
        if match is None:
            raise UserError(
                f"{text!r} is not a schema address",
                fix="Write it as pulse://<tenant>/<name>/<version>",
            )
        return cls(match[1], match[2], int(match[3]))


def refuse_remote(uri: str) -> Any:
    """Retriever for jsonschema-rs, which would otherwise fetch URLs and read files."""
    raise ValueError(f"a schema may not refer to {uri}: only references inside it are allowed")


def validator(document: Mapping[str, Any]) -> Any:
    """Compile the validator (`is_valid`, `iter_errors`) of a schema that `check_document` accepted.

    Patterns always match in linear time; look-arounds and back-references, which cannot, are refused.
    `format` is an annotation in every draft: the formats of typed columns are checked when values are typed.
    """
    return jsonschema_rs.validator_for(guarded(bundled(document)), **OPTIONS)


OPTIONS: Mapping[str, Any] = {
    "retriever": refuse_remote,
    "pattern_options": LINEAR,
    "validate_formats": False,
    "keywords": {"uniqueItems": UniqueItems},
}


@lru_cache(maxsize=1024)
def compiled(document: str) -> Any:
    """The validator of a published document, cached because documents are immutable."""
    return validator(orjson.loads(document))


def check_document(text: str | bytes, bound: Bound | None = None) -> dict[str, Any]:
    """Parse a schema, and check that it is usable; returns the document.

    Args:
        bound: maximum cost of the largest event; None for a schema that was published before.

    Raises:
        UserError: not JSON, too large or deep, not a schema of its draft, refers outside itself, could
            take too long to check events by (`safety.check_bounds`, `cost.check_cost`), does not describe
            an object, has patterns that would be misread or numbers that would be rounded, declares columns
            that cannot live side by side, or gives a role to what cannot play it.
    """
    # Lone surrogates become bytes that are not JSON.
    encoded = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    _check_size(len(encoded), 4 * MAX_BYTES)
    if nesting(encoded) > MAX_DEPTH:
        where = _too_deep(encoded)
        raise UserError(f"the schema is nested deeper than {MAX_DEPTH} levels{where}", fix=_FLATTER)
    try:
        document = orjson.loads(encoded)
    except orjson.JSONDecodeError as error:
        raise UserError(f"the schema is not JSON: {clearer(encoded, error)}") from error
    if not isinstance(document, dict):
        raise UserError("the schema is not a JSON object")
    _check_size(len(orjson.dumps(document)), MAX_BYTES)
    document.setdefault("$schema", DEFAULT_DRAFT)
    draft = document["$schema"]
    if not isinstance(draft, str) or draft.removesuffix("#") not in DRAFTS:
        raise UserError(f"unknown draft {draft!r}", fix=f"Use one of {', '.join(DRAFTS)}")
    try:
        jsonschema_rs.meta.validate(document)
        bundle = bundled(document)
        check_bounds(bundle)
        validator(bundle)
        if bound is not None:
            check_patterns(bundle)
            check_numbers(json_values.exact(encoded))
            check_cost(bundle, bound)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        problem, fix = _invalid(error)
        raise UserError(f"not a valid JSON Schema: {problem}"[:2000], fix=fix) from error
    _check_object(bundle)
    check_roles(document, {column.field: column.type.kind for column in columns(bundle)})
    return document


def _invalid(error: Exception) -> tuple[str, str | None]:
    """Where a document does not follow its draft and how, and what to do, if there is more to say."""
    if not isinstance(error, jsonschema_rs.ValidationError):
        return str(error), None
    path, message = list(error.instance_path), str(error.message)
    fix = None
    if path[-1:] == ["type"] and list(error.schema_path)[-3:] == ["properties", "type", "anyOf"]:
        value = message.partition(" is not valid under any")[0]
        message = f"{value} is not a type: a type is one of {', '.join(TYPES)}, or an array of some of them"
        fix = meant(value.strip('"')[:100], TYPES)
    return f"at #{_shortened(json_pointer(path))}: {message}", fix


def _too_deep(encoded: bytes) -> str:
    """Where the first part is that is nested too deeply; empty if it is too deep to decode."""
    try:
        pending: list[tuple[Any, list[str | int]]] = [(orjson.loads(encoded), [])]
    except orjson.JSONDecodeError:
        return ""
    while pending:
        node, path = pending.pop()
        if len(path) == MAX_DEPTH and isinstance(node, dict | list):
            return f" at #{_shortened(json_pointer(path))}"
        children = (
            node.items() if isinstance(node, dict) else enumerate(node if isinstance(node, list) else ())
        )
        pending.extend(reversed([(child, [*path, key]) for key, child in children]))
    return ""


def _shortened(pointer: str) -> str:
    return pointer if len(pointer) <= MAX_POINTER else f"{pointer[:MAX_POINTER]}…"


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        fix = "Leave out definitions that nothing refers to, and descriptions"
        raise UserError(f"the schema has {size:,} bytes, the limit is {limit:,}", fix=fix)


def _check_object(bundle: Mapping[str, Any]) -> None:
    """Refuse a schema that accepts no object, or that does not constrain objects at all."""
    shape = Shapes(bundle).of(bundle)
    fix = 'An event\'s data is an object: add "type": "object"'
    if "object" not in shape.types:
        raise UserError("the schema must accept objects, but accepts none", fix=fix)
    if shape.types == EVERY and not shape.members and not OF_OBJECTS & bundle.keys():
        raise UserError("the schema must describe an object, but mentions none", fix=fix)
