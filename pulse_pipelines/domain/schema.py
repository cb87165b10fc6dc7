"""A published JSON Schema: its address, its checks, and the typed columns that it declares."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import jsonschema_rs
import orjson

from pulse_pipelines.domain.cost import Bound, check_cost
from pulse_pipelines.domain.event import json_pointer, nesting, values
from pulse_pipelines.domain.guards import guarded
from pulse_pipelines.domain.roles import check_roles
from pulse_pipelines.domain.safety import branches, check_bounds
from pulse_pipelines.domain.subschemas import resolve
from pulse_resources.errors import UserError

DEFAULT_DRAFT = "https://json-schema.org/draft/2020-12/schema"
DRAFTS = (
    DEFAULT_DRAFT,
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
)
MAX_BYTES = 262_144
MAX_DEPTH = 64
"""Of the document; validators and table schemas are walked recursively."""
MAX_FIELDS = 2_000
"""Columns, and members of structs: references can multiply them without bound."""
MAX_TYPE_DEPTH = 32
"""Structs, lists and references between a column and its innermost value; deeper is JSON text."""
MAX_COLLECTED = 2_500
"""Errors of alternatives that may be collected to locate a violation: each takes up to 16 microseconds."""
_LINEAR = jsonschema_rs.RegexOptions(size_limit=131_072, dfa_size_limit=131_072)
"""Bytes of a compiled pattern, and of what matching it keeps (by default 2 MiB, for each pattern)."""
COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,126}")
PHYSICAL = (
    "id",
    "tenant_id",
    "dataset_id",
    "timestamp",
    "ingested_at",
    "context",
    "trace_id",
    "schema_version",
    "_batch",
    "_kafka_partition",
    "_offset",
    "_extra",
)
RESERVED = frozenset(
    (
        *PHYSICAL,
        # Iceberg's metadata columns: Spark cannot read a table that has one of its own.
        *("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id"),
        *("_last_updated_sequence_number", "_change_type", "_change_ordinal", "_commit_snapshot_id"),
    )
)


class Kind(StrEnum):
    STRING = "string"
    LONG = "long"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamptz"
    DATE = "date"
    STRUCT = "struct"
    LIST = "list"
    JSON = "json"
    """JSON text: what has no single type of its own."""


@dataclass(frozen=True)
class FieldType:
    kind: Kind
    fields: "tuple[tuple[str, FieldType], ...]" = ()
    """Members of a struct."""
    item: "FieldType | None" = None
    """Element type of a list."""


@dataclass(frozen=True)
class Column:
    """A declared field: its name in the event's `data` and the column that holds it."""

    field: str
    name: str
    type: FieldType


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
        """Raises UserError when `text` is no schema address."""
        match = re.fullmatch(r"pulse://([a-z][a-z0-9_]*)/([a-z][a-z0-9_]*)/([1-9][0-9]{0,8})", text)
        if match is None:
            raise UserError(
                f"{text!r} is no schema address",
                fix="Write it as pulse://<tenant>/<name>/<version>",
            )
        return cls(match[1], match[2], int(match[3]))


def refuse_remote(uri: str) -> Any:
    """Retriever for jsonschema-rs, which would otherwise fetch URLs and read files."""
    raise ValueError(f"a schema may not refer to {uri}: only references inside it are allowed")


def validator(document: Mapping[str, Any]) -> Any:
    """A compiled validator (`is_valid`, `iter_errors`) of a schema that `check_document` accepted.

    Patterns run in linear time, whatever they and the event are; look-arounds and back-references, which
    cannot, are refused. `format` is an annotation in every draft: what makes a typed column is checked
    when it is typed.
    """
    return jsonschema_rs.validator_for(
        guarded(document), retriever=refuse_remote, pattern_options=_LINEAR, validate_formats=False
    )


@lru_cache(maxsize=1024)
def compiled(document: str) -> Any:
    """The validator of a published document: documents never change, so it can be kept."""
    return validator(orjson.loads(document))


@lru_cache(maxsize=1024)
def _collected(document: str) -> int:
    """How many errors the validator may collect for one value of an event before it reports the first."""
    if '"anyOf"' not in document and '"oneOf"' not in document:
        return 0
    return branches(orjson.loads(document))


def violation(document: str, data: Any) -> tuple[str, str] | None:
    """The JSON pointer and the message of the first way in which `data` breaks a published document.

    None when it does not. The validator collects the errors of all alternatives before it reports the first;
    where those could be too many, only the verdict is given, at the pointer of `data` itself.
    """
    check = compiled(document)
    if check.is_valid(data):
        return None
    if (errors := _collected(document)) and values(data) * errors > MAX_COLLECTED:
        return "", "the data does not follow the schema; it is too large to say where"
    try:
        check.validate(data)
    except jsonschema_rs.ValidationError as error:
        return json_pointer(list(error.instance_path)), str(error.message)
    return None


def check_document(text: str | bytes, bound: Bound | None = None) -> dict[str, Any]:
    """The schema as a document, once it is known to be usable.

    Args:
        bound: what the largest event may cost; None for a schema that was published before.

    Raises:
        UserError: not JSON, too large or deep, not a schema of its draft, refers outside itself, could
            take too long to check events by (`safety.check_bounds`, `cost.check_cost`), does not describe
            an object, declares columns that cannot live side by side, or gives a role to what cannot play it.
    """
    # What is no Unicode becomes bytes that are no JSON.
    encoded = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    if len(encoded) > MAX_BYTES:
        raise UserError(f"the schema has {len(encoded):,} bytes, the limit is {MAX_BYTES:,}")
    if nesting(encoded) > MAX_DEPTH:
        raise UserError(f"the schema is nested deeper than {MAX_DEPTH} levels")
    try:
        document = orjson.loads(encoded)
    except orjson.JSONDecodeError as error:
        raise UserError(f"the schema is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise UserError("the schema is not a JSON object")
    if document.get("type") != "object":
        raise UserError('the schema must describe an object: add "type": "object"')
    document.setdefault("$schema", DEFAULT_DRAFT)
    draft = document["$schema"]
    if not isinstance(draft, str) or draft.removesuffix("#") not in DRAFTS:
        raise UserError(f"unknown draft {draft!r}", fix=f"Use one of {', '.join(DRAFTS)}")
    try:
        jsonschema_rs.meta.validate(document)
        check_bounds(document)
        validator(document)
        if bound is not None:
            check_cost(document, bound)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise UserError(f"not a valid JSON Schema: {getattr(error, 'message', error)}"[:2000]) from error
    check_roles(document, {column.field: column.type.kind for column in columns(document)})
    return document


def columns(document: Mapping[str, Any]) -> tuple[Column, ...]:
    """The declared properties that get a column of their own, in declared order.

    A property whose name is taken (in any case) is stored as `data_<name>`; one whose name
    no engine takes unquoted stays in `_extra`.

    Raises:
        UserError: two properties would share a column, or there are more than `MAX_FIELDS`.
    """
    taken = set(RESERVED)
    types = _Types(document)
    found: list[Column] = []
    for field, fragment in document.get("properties", {}).items():
        if not COLUMN_NAME.fullmatch(field):
            continue
        name = f"data_{field}" if field.lower() in RESERVED else field
        if name.lower() in taken:
            raise UserError(
                f"two properties would share the column {name!r}",
                fix="Engines ignore case: rename one of them",
            )
        taken.add(name.lower())
        if len(found) == MAX_FIELDS:
            raise UserError(f"the schema declares more than {MAX_FIELDS:,} columns")
        found.append(Column(field, name, types.of(fragment)))
    return tuple(found)


_SCALARS = {"integer": Kind.LONG, "number": Kind.DOUBLE, "boolean": Kind.BOOLEAN}
_FORMATS = {"date-time": Kind.TIMESTAMP, "date": Kind.DATE}
_JSON = FieldType(Kind.JSON)


class _Types:
    """Derives the column types of one schema.

    References can make a small document describe a type of any depth and size: deep parts become JSON
    text, and a schema that declares too much is refused.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = MAX_FIELDS

    def of(self, fragment: Any, seen: frozenset[str] = frozenset(), depth: int = 0) -> FieldType:
        """The type of a property; JSON text where the schema allows more than one type.

        Timestamps and dates are typed at the top level only: inside structs and lists they stay strings.
        """
        if not isinstance(fragment, dict) or depth + len(seen) > MAX_TYPE_DEPTH:
            return _JSON
        if isinstance(reference := fragment.get("$ref"), str):
            target = resolve(reference, self._root) if reference.startswith("#/") else None
            if target is None or reference in seen:
                return _JSON
            return self.of(target, seen | {reference}, depth)
        choices = [c for c in fragment.get("anyOf") or fragment.get("oneOf") or () if c != {"type": "null"}]
        if choices:
            return self.of(choices[0], seen, depth) if len(choices) == 1 else _JSON
        declared = fragment.get("type")
        types = [t for t in (declared if isinstance(declared, list) else [declared]) if t != "null"]
        if len(types) != 1:
            return _JSON
        match types[0]:
            case "string":
                kind = Kind.STRING if depth else _FORMATS.get(fragment.get("format", ""), Kind.STRING)
                return FieldType(kind)
            case "integer" | "number" | "boolean" as scalar:
                return FieldType(_SCALARS[scalar])
            case "array" if isinstance(fragment.get("items"), dict) and "prefixItems" not in fragment:
                item = self.of(fragment["items"], seen, depth + 1)
                return _JSON if item.kind is Kind.JSON else FieldType(Kind.LIST, item=item)
            case "object" if fragment.get("properties"):
                return self._struct(fragment["properties"], seen, depth)
        return _JSON

    def _struct(self, properties: Mapping[str, Any], seen: frozenset[str], depth: int) -> FieldType:
        self._left -= len(properties)
        if self._left < 0:
            raise UserError(f"the schema declares more than {MAX_FIELDS:,} nested fields")
        members = tuple((name, self.of(fragment, seen, depth + 1)) for name, fragment in properties.items())
        distinct = {name.lower() for name, _ in members}
        nameable = all(COLUMN_NAME.fullmatch(name) for name, _ in members)
        typed = all(member.kind is not Kind.JSON for _, member in members)
        if len(distinct) < len(members) or not nameable or not typed:
            return _JSON
        return FieldType(Kind.STRUCT, fields=members)
