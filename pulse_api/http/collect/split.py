"""A body becomes single events: one object, an array, lines, or CloudEvents.

What is published is the event's own bytes where it has any to itself (one object, a line); an element of
an array is written anew from what was decoded.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from pulse_api.http.collect import cloudevents, values
from pulse_api.http.problems import ProblemError
from pulse_pipelines.domain.event import nesting, suspicious

LINES = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl"})
JSON = "application/json"
CLOUDEVENT = "application/cloudevents+json"
CLOUDEVENTS = "application/cloudevents-batch+json"
LARGE_BYTES = 256 * 1024
"""An array beyond this is decoded element by element."""
LEVELS_OF_AN_ARRAY = 1
"""Levels that an array adds to the depth of its events."""

_VALID = "Send one JSON object, an array of them, or a line each as application/x-ndjson"
_AS_LINES = "Where each line is an event, say so: Content-Type: application/x-ndjson"


class Item(NamedTuple):
    """One event of a request: its bytes, and the event decoded from them, if it is already."""

    payload: bytes
    event: Any = None
    plain: bool = False
    """Whether it is known that nothing in it is suspicious."""


def split(
    body: bytes,
    headers: Mapping[str, str],
    *,
    max_events: int,
    max_values: int,
    max_depth: int,
    max_bytes: int,
) -> list[Item]:
    """The events of a body, in order; in a large array what exceeds `max_bytes` is not decoded.

    Raises:
        ProblemError: 400 for what is not JSON or too deep, 415 for another media type, 413 for too many.
    """
    values.bound(body, max_values)
    media_type = headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if cloudevents.is_binary(headers):
        items = [anew(cloudevents.of_headers(headers, _exact(body, max_depth), max_values))]
    elif media_type == CLOUDEVENT:
        items = [_of_cloud(_exact(body, max_depth), max_values)]
    elif media_type == CLOUDEVENTS:
        entries = _counted(_array(body, max_depth), max_events)
        items = [_of_cloud(entry, max_values) for entry in entries]
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
    """Of these headers those that tell how a body is read; no key is among them."""
    return {
        name: value
        for name, value in headers.items()
        if name == "content-type" or name.startswith(cloudevents.PREFIX)
    }


def _counted(events: list[Any], most: int) -> list[Any]:
    """These events, unless there are too many: counted before anything is made of them."""
    if len(events) > most:
        raise _too_many("events", most)
    return events


def _lines(body: bytes, most: int) -> list[bytes]:
    """The lines of a body; blank ones count, too, where there are too many."""
    if values.count(body, b"\n", most + 1) > most:  # the last line may end with one
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
    if suspicious(body):
        return [anew(element) for element in _exact(body, max_depth)]
    return [anew(element, plain=True) for element in decoded]


def _piece(number: int, piece: bytes, max_depth: int, max_bytes: int) -> Item:
    """An element of a large array: others run between two of them, and none is decoded that is too large."""
    if len(piece) > max_bytes:
        return Item(piece)
    if suspicious(piece):
        return anew(_exact(piece, max_depth))
    return anew(_decoded(piece, f"element {number} of the body"), plain=True)


def _of_cloud(cloud: Any, max_values: int) -> Item:
    item = anew(cloudevents.to_event(cloud, max_values))
    # What base64 hides was not counted with the body: of many events no two are decoded at a time.
    return Item(item.payload) if "data_base64" in cloud else item


def _array(body: bytes, max_depth: int) -> list[Any]:
    decoded = _exact(body, max_depth)
    if not isinstance(decoded, list):
        raise ProblemError(400, "malformed", "a batch of CloudEvents is a JSON array", fix=_VALID)
    return decoded


def _decoded(body: bytes, what: str = "the body") -> Any:
    """Decoded by orjson, which bounds the depth that it follows, and lets nobody run meanwhile."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        fix = _AS_LINES if b"\n" in body.strip() and body[:1] == b"{" else _VALID
        raise ProblemError(400, "malformed", f"{what} is not JSON: {error}", fix=fix) from error


def _exact(body: bytes, max_depth: int) -> Any:
    """Decoded without what orjson does silently: the judge must see integers as they were sent."""
    decoded = _decoded(body)
    if not suspicious(body):
        return decoded
    if nesting(body) > max_depth + LEVELS_OF_AN_ARRAY:  # the standard library recurses
        raise ProblemError(400, "malformed", f"the body is nested deeper than {max_depth} levels")
    return json.loads(body)


def anew(event: Any, *, plain: bool = False) -> Item:
    """An event without bytes of its own, written."""
    try:
        payload = orjson.dumps(event)
    except TypeError:  # an integer beyond 64 bits or hundreds of levels: for the judge to refuse
        try:
            payload = json.dumps(event).encode()
        except RecursionError as error:
            raise ProblemError(400, "malformed", "an event is nested too deep to be read") from error
    return Item(payload, event, plain)
