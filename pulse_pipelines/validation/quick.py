"""Quick decoders: decode and validate events of plain schemas in one pass, into objects with attributes.

A decoder accepts an event only if the validator accepts it and gives the same row. Its refusal means nothing:
the validator then decides, and alone gives verdicts. A schema with any keyword that is not known here to mean
the same to both has no decoder.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter
from typing import Annotated, Any, Literal, Union

import msgspec
import numpy as np
import orjson
from msgspec import UNSET, UnsetType

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.entities import AS_THEY_ARE, DELETION, plain
from pulse_pipelines.domain.schemas.columns import FieldType, Kind

_REFUSALS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
EVENT_ID = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
"""Characters of UTF-8 have up to four bytes: an id of this length is within `MAX_ID_BYTES`."""
INT64 = {"ge": -(2**63), "le": 2**63 - 1}
EXACT = 2**53
"""From here on a float may differ from the integer that was written: bounds, hashes and columns see it."""
FLOATS = {"gt": -float(EXACT), "lt": float(EXACT)}

_ANNOTATIONS = {
    "$schema",
    "$id",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "format",
    "deprecated",
    "readOnly",
    "writeOnly",
    "type",
}
_BOUNDS = {"minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt"}
_OTHER = {"ge": "gt", "gt": "ge", "le": "lt", "lt": "le"}
_LENGTHS = {"minLength": "min_length", "maxLength": "max_length"}
_COUNTS = {"minItems": "min_length", "maxItems": "max_length"}
_SIMPLE = {str, bool, type(None)}
_ANCHORED = re.compile(
    r"\^((?:[A-Za-z0-9_ -]|\[[A-Za-z0-9_]+(?:-[A-Za-z0-9_]+)*-?\])(?:\{\d{1,3}(?:,\d{1,3})?\}|[+*?])?)+\$"
)
"""Patterns that mean the same to every engine, except for `$`, which in Python also matches before a final
line feed."""
END = r"\Z"
"""Replaces `$` in a decoder's pattern: it matches at the end only."""


class NotPlain(Exception):  # noqa: N818 - no error: the validator checks all events of such a schema
    """The schema has a keyword that a decoder cannot express."""


@dataclass(frozen=True)
class Quick:
    """A decoder for the events of one tenant.

    Its events have the attributes of the envelope and `data`, whose properties `column` gives.
    """

    _decoder: msgspec.json.Decoder[Any]
    slugs: Mapping[type, str]
    """Dataset slugs, by type of the decoded event."""
    _attributes: Mapping[str, Mapping[str, str]]
    """Attributes of `data`, by dataset slug and property."""

    def one(self, payload: bytes) -> Any:
        """Decode one event; None if the decoder refuses it."""
        if _holds_nul(payload):
            return None
        try:
            return self._decoder.decode(payload)
        except _REFUSALS:
            return None

    def all(self, lines: bytes, count: int) -> list[Any] | None:
        """Decode events in one call, `count` payloads joined by line breaks.

        None if it refuses one, or a payload may not be exactly one event.
        """
        if _holds_nul(lines) or not _from_brace_to_brace(lines):
            return None
        try:
            events: list[Any] = self._decoder.decode_lines(lines)
        except _REFUSALS:
            return None
        # No event spans a line break between such braces, so each line has at least one event, and there are
        # at least as many lines as payloads: equal counts mean one event per payload.
        return events if len(events) == count else None

    def column(self, dataset: Dataset, field: str, datas: Sequence[Any]) -> list[Any]:
        """The values of a property, by event; None where it is absent."""
        values = list(map(attrgetter(self._attributes[dataset.slug][field]), datas))
        return [None if value is UNSET else value for value in values] if dataset.of_entities else values

    def canonical(self, dataset: Dataset, datas: Sequence[Any]) -> Iterator[bytes]:
        """The canonical JSON (see `domain.entities`) of the data of each entity."""
        attributes = self._attributes[dataset.slug]
        names, canonical = sorted(attributes), AS_THEY_ARE | {UnsetType}
        columns = [list(map(attrgetter(attributes[name]), datas)) for name in names]
        for place, values in enumerate(columns):
            if not canonical.issuperset(map(type, values)):
                columns[place] = list(map(plain, values))
        for row in zip(*columns, strict=True) if columns else repeat((), len(datas)):
            content = dict(zip(names, row, strict=True))
            if UNSET in row:
                content = {name: value for name, value in content.items() if value is not UNSET}
            yield orjson.dumps(content)


def _holds_nul(payload: bytes) -> bool:
    return b"\\" in payload and b"\\u0000" in payload  # the search for one byte is much faster


def _from_brace_to_brace(lines: bytes) -> bool:
    """Whether each line begins with `{` and ends with `}`."""
    if not lines.startswith(b"{") or not lines.endswith(b"}"):
        return False
    characters = np.frombuffer(lines, np.uint8)
    breaks = np.flatnonzero(characters == ord("\n"))
    return bool((characters[breaks - 1] == ord("}")).all() and (characters[breaks + 1] == ord("{")).all())


def decoder(datasets: Iterable[Dataset], names: Iterable[str]) -> Quick | None:
    """Make the decoder of those datasets whose schemas are plain; None if there is none.

    Args:
        names: accepted values of the envelope's `tenant`.
    """
    slugs: dict[Any, str] = {}
    attributes = {}
    for dataset in datasets:
        try:
            data, columns = _data(dataset)
        except NotPlain:
            continue
        attributes[dataset.slug] = columns
        struct = msgspec.defstruct(
            "Event",
            [
                ("event_id", EVENT_ID),
                ("timestamp", str),
                ("data", data),
                ("context", Any, None),
                ("trace_id", str | None, None),
                ("schema_version", Literal[dataset.schema_version] | None, None),
                ("tenant", Literal[*names] | None, None),
                # The validator checks it: the marker is not content of an entity.
                *([(DELETION, None, None)] if dataset.of_entities else []),
            ],
            tag_field="dataset",
            tag=dataset.slug,
            forbid_unknown_fields=True,
            gc=False,
            eq=False,
        )
        slugs[struct] = dataset.slug
    if not slugs:
        return None
    return Quick(msgspec.json.Decoder(Union[*slugs]), slugs, attributes)


def has_numbers(context: Any) -> bool:
    """Whether a decoded value is other than an object of strings, booleans and nulls, or null."""
    return context is not None and (
        type(context) is not dict or not _SIMPLE.issuperset(map(type, context.values()))
    )


def _data(dataset: Dataset) -> tuple[type, dict[str, str]]:
    """The type of an event's data, and the attribute of each property."""
    document, columns = dataset.schema, {column.field: column for column in dataset.columns}
    properties = document.get("properties", {})
    required = document.get("required", [])
    _check(document, {"properties", "required", "additionalProperties"})
    if not isinstance(document.get("additionalProperties", True), bool) or not properties.keys() >= set(
        required
    ):
        raise NotPlain
    fields: list[tuple[Any, ...]] = []
    attributes = {}
    for number, (name, fragment) in enumerate(properties.items()):
        if name not in columns:
            raise NotPlain
        attribute = attributes[name] = f"p{number}"
        kind = _type(fragment, columns[name].type)
        if name in required:
            field = msgspec.field(name=name)
        elif dataset.of_entities:  # the content of an entity without a property is not that with a null
            kind, field = kind | UnsetType, msgspec.field(name=name, default=UNSET)
        else:
            field = msgspec.field(name=name, default=None)
        fields.append((attribute, kind, field))
    struct = msgspec.defstruct("Data", fields, kw_only=True, forbid_unknown_fields=True, gc=False, eq=False)
    return struct, attributes


def _type(fragment: Any, column: FieldType) -> Any:
    """The Python type, with constraints, of a property."""
    if not isinstance(fragment, dict):
        raise NotPlain
    declared = fragment.get("type")
    if declared is None:
        raise NotPlain
    types = declared if isinstance(declared, list) else [declared]
    nullable = "null" in types
    match column.kind:
        case Kind.STRING | Kind.TIMESTAMP | Kind.DATE:
            python_type = _string(fragment)
        case Kind.LONG:
            python_type = _number(fragment, int, INT64)
        case Kind.DOUBLE:
            python_type = _number(fragment, float, FLOATS)
        case Kind.BOOLEAN:
            _check(fragment, set())
            python_type = bool
        case Kind.LIST if column.item is not None:
            _check(fragment, {"items", *_COUNTS})
            item = _type(fragment["items"], column.item)
            counts: dict[str, Any] = _whole(fragment, _COUNTS)
            python_type = Annotated[list[item], msgspec.Meta(**counts)]  # type: ignore[valid-type]
        case _:
            raise NotPlain
    return python_type | None if nullable else python_type


def _string(fragment: Mapping[str, Any]) -> Any:
    _check(fragment, {"enum", "pattern", *_LENGTHS})
    constraints: dict[str, Any] = _whole(fragment, _LENGTHS)
    if (pattern := fragment.get("pattern")) is not None:
        if not isinstance(pattern, str) or not _ANCHORED.fullmatch(pattern):
            raise NotPlain
        constraints["pattern"] = pattern.removesuffix("$") + END
    if "enum" not in fragment:
        return Annotated[str, msgspec.Meta(**constraints)]
    options = [option for option in fragment["enum"] if option is not None]
    if constraints or not options or any(type(option) is not str for option in options):
        raise NotPlain
    if ("null" in fragment["type"]) != (None in fragment["enum"]):
        raise NotPlain
    return Literal[*options]


def _number(fragment: Mapping[str, Any], kind: type, limits: Mapping[str, float]) -> Any:
    _check(fragment, set(_BOUNDS))
    declared = {_BOUNDS[keyword]: fragment[keyword] for keyword in _BOUNDS if keyword in fragment}
    if {"ge", "gt"} <= declared.keys() or {"le", "lt"} <= declared.keys():
        raise NotPlain
    for bound in declared.values():
        if type(bound) not in (int, kind) or abs(bound) >= EXACT:
            raise NotPlain
    of_type = {name: limit for name, limit in limits.items() if not {name, _OTHER[name]} & declared.keys()}
    return Annotated[kind, msgspec.Meta(**(of_type | declared))]


def _whole(fragment: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, int]:
    numbers = {names[keyword]: fragment[keyword] for keyword in names if keyword in fragment}
    if any(type(value) is not int for value in numbers.values()):
        raise NotPlain
    return numbers


def _check(fragment: Mapping[str, Any], accepted: set[str]) -> None:
    """Raises NotPlain: there are other keywords than these and annotations."""
    if any(key not in accepted and key not in _ANNOTATIONS and not key.startswith("x-") for key in fragment):
        raise NotPlain


def with_long_numbers(lines: bytes, payloads: Sequence[bytes]) -> Sequence[int]:
    """Indexes of those of joined payloads that may have 16 digits and points on end; never without one."""
    digits = np.frombuffer(lines, np.uint8, len(lines) & ~1) - ord(".") < ord(":") - ord(".")
    pairs = digits.view(np.uint16) == 0x0101
    for step in (1, 2, 3):  # pairs become runs of 2, 4 and 7 pairs, which are in each 16
        pairs = pairs[step:] & pairs[:-step]
    if not pairs.any():
        return ()
    ends = np.cumsum([len(payload) + 1 for payload in payloads])
    return np.unique(np.searchsorted(ends, 2 * np.flatnonzero(pairs), "right")).tolist()  # type: ignore[no-any-return]
