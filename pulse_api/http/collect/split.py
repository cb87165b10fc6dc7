"""Splitting a body into events: one object, an array, lines, or CloudEvents.

An event is published as the bytes that were sent where it has bytes of its own (one object, a line); an
element of an array is serialized again from its decoded value.
"""

import json
from codecs import BOM_UTF8
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from pulse_api.http.collect import cloudevents, values
from pulse_api.http.problems import ProblemError
from pulse_pipelines.domain import json_values
from pulse_pipelines.domain.event import nesting
from pulse_pipelines.tables.arrow_columns import unusual

LINES = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl"})
JSON = "application/json"
CLOUDEVENT = "application/cloudevents+json"
CLOUDEVENTS = "application/cloudevents-batch+json"
LARGE_BYTES = 256 * 1024
"""Size from which an array is decoded element by element."""
LEVELS_OF_AN_ARRAY = 1
"""Nesting levels that an array adds to those of its events."""

_VALID = "Send one JSON object, an array of them, or a line each as application/x-ndjson"
_AS_LINES = "Where each line is an event, say so: Content-Type: application/x-ndjson"


class Item(NamedTuple):
    """One event of a request: its bytes, and the decoded event if it has been decoded."""

    payload: bytes
    event: Any = None
    plain: bool = False
    """Whether the payload is known not to be `unusual`."""


def split(
    body: bytes,
    headers: Mapping[str, str],
    *,
    max_events: int,
    max_values: int,
    max_depth: int,
    max_bytes: int,
) -> list[Item]:
    """The events of a body, in order; elements of a large array beyond `max_bytes` are not decoded.

    Raises:
        ProblemError: 400 if it is not JSON or too deep, 415 for another media type, 413 for too many events.
    """
    body = body.removeprefix(BOM_UTF8)  # it is none of the first event, and editors add it
    values.bound(body, max_values)
    media_type = headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if cloudevents.is_binary(headers, media_type):
        data, plain = exact(body, max_depth)
        items = [anew(cloudevents.of_headers(headers, data, max_values), plain=plain)]
    elif media_type == CLOUDEVENT:
        cloud, plain = exact(body, max_depth)
        items = [_of_cloud(cloud, max_values, plain)]
    elif media_type == CLOUDEVENTS:
        entries, plain = exact(body, max_depth)
        if not isinstance(entries, list):
            raise ProblemError(400, "malformed", "a batch of CloudEvents is a JSON array", fix=_VALID)
        items = [_of_cloud(entry, max_values, plain) for entry in _counted(entries, max_events)]
    elif media_type in LINES:
        items = [Item(line) for line in _lines(body, max_events) if line.strip()]
    elif media_type == JSON:
        items = _json(body, max_events, max_depth, max_bytes)
    else:
        raise ProblemError(
            415,
            "unsupported-media-type",
            f"the media type {media_type[:100]!r} is not supported",
            fix=f"Send {JSON}, application/x-ndjson, {CLOUDEVENT} or {CLOUDEVENTS}",
        )
    if not items:
        raise ProblemError(400, "malformed", "the body holds no event", fix=_VALID)
    return items


def describing(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers that say how a body is read, without a key. Raises ProblemError: 400, one has two values."""
    kept: dict[str, str] = {}
    for name, value in headers.items():
        is_one = name == "content-type" or name.startswith(cloudevents.PREFIX)
        if is_one and kept.setdefault(name, value) != value:
            detail = f"the header {name[:100]} is there twice, with two values"
            raise ProblemError(400, "malformed", detail, fix="Send it once")
    return kept


def _counted(events: list[Any], most: int) -> list[Any]:
    """The events, unless there are too many; checked before anything is built from them."""
    if len(events) > most:
        raise _too_many("events", most)
    return events


def _lines(body: bytes, most: int) -> list[bytes]:
    """The lines of a body; blank lines count towards the limit, too."""
    if values.count(body, b"\n", most + 1) > most:  # the last line may end with a line feed
        raise _too_many("lines", most)
    return body.split(b"\n")


def _too_many(what: str, most: int) -> ProblemError:
    detail = f"there are more {what} than the {most:,} that a request may have"
    return ProblemError(413, "too-large", detail, fix="Send fewer events at a time")


def _json(body: bytes, max_events: int, max_depth: int, max_bytes: int) -> list[Item]:
    if len(body) > LARGE_BYTES and body.lstrip(values.SPACE)[:1] == b"[":
        pieces = _counted(values.elements(body, max_events), max_events)
        return [_piece(number, piece, max_depth, max_bytes) for number, piece in enumerate(pieces)]
    decoded = _decoded(body)
    if not isinstance(decoded, list):
        return [Item(body, decoded)]
    _counted(decoded, max_events)
    decoded, plain = exact(body, max_depth, decoded)
    return [anew(element, plain=plain) for element in decoded]


def _piece(number: int, piece: bytes, max_depth: int, max_bytes: int) -> Item:
    """An element of a large array, not decoded where it is too large; other requests run between elements."""
    if len(piece) > max_bytes:
        return Item(piece)
    element, plain = exact(piece, max_depth, _decoded(piece, f"element {number} of the body"))
    return anew(element, plain=plain)


def _of_cloud(cloud: Any, max_values: int, plain: bool) -> Item:
    item = anew(cloudevents.to_event(cloud, max_values), plain=plain)
    # Values hidden in base64 were not counted with the body, so such events are decoded one at a time.
    return Item(item.payload) if "data_base64" in cloud else item


def _decoded(body: bytes, what: str = "the body") -> Any:
    """Decode with orjson, which bounds the depth; it blocks all other threads meanwhile."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        fix = _AS_LINES if b"\n" in body.strip() and body[:1] == b"{" else _VALID
        raise ProblemError(400, "malformed", f"{what} is not JSON: {error}", fix=fix) from error


def exact(body: bytes, max_depth: int, decoded: Any = None) -> tuple[Any, bool]:
    """Decode without silent conversions: numbers are as they were sent; and whether the body is plain.

    Args:
        decoded: the body, decoded with them.

    Raises:
        ProblemError: 400, it is no JSON, or too deep.
    """
    if decoded is None:
        decoded = _decoded(body)
    if not unusual([body]):
        return decoded, True
    if nesting(body) > max_depth + LEVELS_OF_AN_ARRAY:  # the standard library's decoder recurses
        raise ProblemError(400, "malformed", f"the body is nested deeper than {max_depth} levels")
    return json_values.exact(body), False


def anew(event: Any, *, plain: bool) -> Item:
    """Item of an event without bytes of its own, serialized; one that is not plain is decoded again."""
    try:
        payload = json_values.written(event)
    except TypeError:  # an integer beyond 64 bits or hundreds of levels: refused by the validator
        try:
            payload = json.dumps(event).encode()
        except RecursionError as error:
            raise ProblemError(400, "malformed", "an event is nested too deep to be read") from error
    return Item(payload, event, True) if plain else Item(payload)
