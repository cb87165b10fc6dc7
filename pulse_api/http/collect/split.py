"""Splitting a body into events: one object, an array, lines, or CloudEvents.

An event is published as the bytes that were sent where it has bytes of its own: one object, a line, an
element of a large array. An element of a small array is serialized again from its decoded value, which costs
less than to find where it ends, unless it is kept as a dead letter (`Texts`). What is wrong with one event of
several is for the validator to refuse: the others do not depend on it.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import orjson

from pulse_api.http.collect import cloudevents, values
from pulse_api.http.problems import ProblemError
from pulse_pipelines.domain import json_values
from pulse_pipelines.domain.event import Rejected, nesting
from pulse_pipelines.domain.not_json import clearer
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.tables.arrow_columns import unusual

LINES = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl"})
JSON = "application/json"
CLOUDEVENT = "application/cloudevents+json"
CLOUDEVENTS = "application/cloudevents-batch+json"
LARGE_BYTES = 256 * 1024
"""Size from which an array is decoded element by element."""
LEVELS_OF_AN_ARRAY = 1
"""Nesting levels that an array adds to those of its events."""

_EMPTY = re.compile(rb"[ \t\n\r]*+(?:\[[ \t\n\r]*+\][ \t\n\r]*+)?")
_VALID = "Send one JSON object, an array of them, or a line each as application/x-ndjson"
_AS_LINES = "If each line is an event, send Content-Type: application/x-ndjson"


class Texts:
    """The elements of a body that is an array, as they were sent; cut out of it when the first is needed."""

    def __init__(self, body: bytes, count: int) -> None:
        self._body, self._count = body, count
        self._texts: list[bytes] | None = None

    def of(self, index: int) -> bytes | None:
        """The text of an element; None if the body has another number of elements."""
        if self._texts is None:
            texts = values.elements(self._body, self._count) or []
            self._texts = texts if len(texts) == self._count else [b""] * self._count
        return self._texts[index] or None


class Item(NamedTuple):
    """One event of a request: its bytes, and the decoded event if it has been decoded."""

    payload: bytes
    event: Any = None
    plain: bool = False
    """Whether the payload is known not to be `unusual`."""
    rejected: Rejected | None = None
    """The reason why it cannot be one, where that shows before it is validated."""
    texts: Texts | None = None
    """Has its own text, at its index in the request; None: the payload is its own text, or it has none."""


_UNDECODED = Item(b"")
Make = Callable[[Any, bool], Item]
"""Makes an item of a decoded element, and of whether its bytes are plain; RecursionError if too deep."""


@dataclass(frozen=True)
class _Limits:
    max_events: int
    max_values: int
    max_depth: int
    max_bytes: int

    def too_deep(self, payload: bytes = b"") -> Item:
        """The item of an event that is nested too deep to be decoded, or to be serialized."""
        detail = f"nested deeper than {self.max_depth} levels"
        return Item(payload, rejected=Rejected(Reason.TOO_DEEP, detail))


def split(
    body: bytes,
    headers: Mapping[str, str],
    *,
    max_events: int,
    max_values: int,
    max_depth: int,
    max_bytes: int,
) -> list[Item]:
    """The events of a body, in order; elements of an array beyond `max_bytes` may be left undecoded.

    Raises:
        ProblemError: 400 if it is not JSON, 415 for another media type, 413 for too many events.
    """
    body = body.removeprefix(BOM_UTF8)  # it is none of the first event, and editors add it
    values.bound(body, max_values)
    limits = _Limits(max_events, max_values, max_depth, max_bytes)
    media_type = headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if cloudevents.is_binary(headers, media_type):
        make = partial(cloudevents.of_headers, headers, max_values=max_values)
        # That the body is plain tells nothing of the headers: they may have a NUL.
        items = [_cloud_event_item(body, limits, lambda data, _: serialize_event(make(data), plain=False))]
    elif media_type == CLOUDEVENT:
        items = [_cloud_event_item(body, limits, lambda cloud, plain: _of_cloud(cloud, max_values, plain))]
    elif media_type == CLOUDEVENTS:
        if not _is_array(body):
            raise ProblemError(400, "malformed", "a batch of CloudEvents is a JSON array", fix=_VALID)
        items = _array(body, limits, lambda cloud, plain: _of_batch(cloud, max_values, plain))
    elif media_type in LINES:
        items = [Item(line) for line in _lines(body, max_events) if line.strip()]
    elif media_type != JSON:
        raise ProblemError(
            415,
            "unsupported-media-type",
            f"the media type {media_type[:100]!r} is not supported",
            fix=f"Send {JSON}, application/x-ndjson, {CLOUDEVENT} or {CLOUDEVENTS}",
        )
    elif _is_array(body):
        items = _array(body, limits)
    else:
        items = [_whole_body_item(body, limits)]
    if not items:
        raise ProblemError(400, "malformed", "the body holds no event", fix=_VALID)
    return items


def is_empty(body: bytes) -> bool:
    """Whether a body is white space, or an empty array, however its request says that it is read."""
    return _EMPTY.fullmatch(body.removeprefix(BOM_UTF8)) is not None


def describing(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers that say how a body is read, without a key. Raises ProblemError: 400, one has two values."""
    by_name: dict[str, str] = {}
    for name, value in headers.items():
        is_one = name == "content-type" or name.startswith(cloudevents.PREFIX)
        if is_one and by_name.setdefault(name, value) != value:
            detail = f"the header {name[:100]} is there twice, with two values"
            raise ProblemError(400, "malformed", detail, fix="Send it once")
    return by_name


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


def _too_many(items: str, most: int) -> ProblemError:
    detail = f"there are more {items} than the {most:,} that a request may have"
    return ProblemError(413, "too-large", detail, fix="Send fewer events at a time")


def _is_array(body: bytes) -> bool:
    return body.lstrip(values.SPACE)[:1] == b"["


def _whole_body_item(body: bytes, limits: _Limits) -> Item:
    """The event that is the whole body."""
    try:
        return Item(body, orjson.loads(body))
    except orjson.JSONDecodeError as error:
        if nesting(body) > limits.max_depth:
            return limits.too_deep(body)
        raise _no_json(body, str(clearer(body, error))) from error


def _cloud_event_item(body: bytes, limits: _Limits, make: Make) -> Item:
    """The CloudEvent that is the whole body, or its data."""
    try:
        return make(*_exact(body, limits.max_depth))
    except orjson.JSONDecodeError as error:
        if nesting(body) > limits.max_depth:
            return limits.too_deep()
        raise _no_json(body, str(clearer(body, error))) from error
    except RecursionError:
        return limits.too_deep()


def _array(body: bytes, limits: _Limits, make: Make | None = None) -> list[Item]:
    """The elements of an array; those that are not JSON, or too deep, are left undecoded.

    A large array is decoded element by element, so that other requests run between elements.

    Args:
        make: None: the elements are the events.

    Raises:
        ProblemError: 400, it is not one array; 413, it has too many elements.
    """
    problem = "it is not one array"
    if len(body) <= LARGE_BYTES:
        try:
            decoded = _counted(orjson.loads(body), limits.max_events)
            decoded, plain = _exact(body, limits.max_depth + LEVELS_OF_AN_ARRAY, decoded)
            if make is not None:
                return [make(element, plain) for element in decoded]
            texts = Texts(body, len(decoded))
            return [serialize_event(element, plain=plain, texts=texts) for element in decoded]
        except orjson.JSONDecodeError as error:
            problem = str(clearer(body, error))
        except RecursionError:  # the elements show which one is too deep
            pass
    pieces = values.elements(body, limits.max_events)
    if pieces is None:
        raise _no_json(body, problem)
    _counted(pieces, limits.max_events)
    if b"" in pieces:
        raise _no_json(body, f"element {pieces.index(b'')} is empty")
    items = [_piece(piece, limits, make) for piece in pieces]
    for number, item in enumerate(items):
        if item is _UNDECODED and not values.is_delimited(pieces[number]):
            raise _no_json(body, f"where element {number} ends is unclear: a quote or a comma is missing")
    return [Item(piece) if item is _UNDECODED else item for item, piece in zip(items, pieces, strict=True)]


def _piece(piece: bytes, limits: _Limits, make: Make | None) -> Item:
    """The item of an array's element; `_UNDECODED` where it is too large, or not JSON."""
    if len(piece) > limits.max_bytes:
        return _UNDECODED
    try:
        element, plain = _exact(piece, limits.max_depth)
        if make is not None:
            return make(element, plain)
        return Item(piece, element, True) if plain else Item(piece)
    except orjson.JSONDecodeError:
        return _UNDECODED
    except RecursionError:
        return limits.too_deep(piece)


def _of_cloud(cloud: Any, max_values: int, plain: bool) -> Item:
    item = serialize_event(cloudevents.to_event(cloud, max_values), plain=plain)
    # Values hidden in base64 were not counted with the body, so such events are decoded one at a time.
    return Item(item.payload) if "data_base64" in cloud else item


def _of_batch(cloud: Any, max_values: int, plain: bool) -> Item:
    """The item of a CloudEvent beside others, which is refused alone."""
    try:
        return _of_cloud(cloud, max_values, plain)
    except ProblemError as error:
        reason = Reason.OVERSIZE if error.status == 413 else Reason.INVALID_ENVELOPE
        return Item(b"", cloudevents.identity(cloud), rejected=Rejected(reason, error.detail))


def _no_json(body: bytes, why: str) -> ProblemError:
    fix = _AS_LINES if b"\n" in body.strip() and body[:1] == b"{" else _VALID
    return ProblemError(400, "malformed", f"the body is not JSON: {why}", fix=fix)


def _exact(body: bytes, max_depth: int, decoded: Any = None) -> tuple[Any, bool]:
    """Decode without silent conversions: numbers are as they were sent; and whether the body is plain.

    Args:
        decoded: the body, decoded with them.

    Raises:
        orjson.JSONDecodeError: it is not JSON, or a thousand levels deep.
        RecursionError: it is deeper than `max_depth`, and has numbers that need a decoder that recurses.
    """
    if decoded is None:
        decoded = orjson.loads(body)  # blocks all other threads meanwhile
    if not unusual([body]):
        return decoded, True
    if nesting(body) > max_depth:
        raise RecursionError
    return json_values.exact(body), False


def serialize_event(event: Any, *, plain: bool, texts: Texts | None = None) -> Item:
    """Item of an event, serialized; one that is not plain is decoded again.

    Args:
        texts: has its own text; None: it has none, such as an event that was made of something else.

    Raises:
        RecursionError: it is nested hundreds of levels deep.
    """
    try:
        payload = json_values.written(event)
    except TypeError:  # an integer beyond 64 bits or hundreds of levels: refused by the validator
        payload = json.dumps(event).encode()
    return Item(payload, event, True, None, texts) if plain else Item(payload, texts=texts)
