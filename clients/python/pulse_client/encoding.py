"""Events as bytes: plain events, CloudEvents, and events that are JSON text already.

An event that cannot be sent becomes a `Verdict` with the status `refused`, as if the server had judged it, so
that it does not keep the others of its request out.
"""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Protocol, Union
from uuid import UUID

from pulse_client.results import Verdict
from pulse_client.words import clean, time_text, unwritable

LINES = "application/x-ndjson"
CLOUDEVENTS = "application/cloudevents-batch+json"
_VERSION = "1.0"
_UNDECODABLE = "undecodable"


class CloudEvent(Protocol):
    """An object of the package `cloudevents`, 1.12 and later, or one like it."""

    def get_attributes(self) -> Mapping[str, Any]:
        """The context attributes, by name."""

    def get_data(self) -> Any:
        """The data: values of JSON, or bytes that hold JSON."""


Event = Union[Mapping[str, Any], CloudEvent, bytes]
"""A plain event or a CloudEvent (one with the member `specversion`) as a mapping, an object of the package
`cloudevents`, or the JSON text of a plain event."""


@dataclass
class EncodedEvent:
    """One event, ready to be sent. It is not frozen: that would cost a third of all that is done to bytes."""

    index: int
    """Position in the caller's own events."""
    payload: bytes
    event_id: str | None
    """None: the event was bytes, which are not decoded."""
    media_type: str


def encode(event: Event, index: int = 0) -> EncodedEvent | Verdict:
    """Serialize an event; without an id it gets one, which all attempts share.

    Dates, times and UUIDs become text. NaN, infinities, lone surrogates and other types, such as `Decimal`,
    are refused: JSON has none.
    """
    if isinstance(event, bytes):
        if not event.strip():
            return _refused(index, None, _UNDECODABLE, "the event is empty")
        # In a request, line feeds separate events. A carriage return is the same between values, and as invalid
        # within a text.
        return EncodedEvent(index, event.replace(b"\n", b"\r"), None, LINES)
    document = _document(event)
    if document is None:
        detail = f"an event is a mapping, a CloudEvent or bytes, not {type(event).__name__}"
        return _refused(index, None, _UNDECODABLE, detail)
    media_type = LINES
    event_id = str(document.get("event_id"))
    if "specversion" in document:
        media_type = CLOUDEVENTS
        event_id = cloudevent_id(str(document.get("source")), str(document["id"]))
    try:
        return EncodedEvent(index, _ENCODER.encode(document).encode(), event_id, media_type)
    except RecursionError:
        return _refused(index, _sendable(event_id), _UNDECODABLE, "the event is nested too deeply")
    except (TypeError, ValueError) as error:
        return _unwritable(index, _sendable(event_id), document, error)


def cloudevent_id(source: str, name: str) -> str:
    """The event id that Pulse gives a CloudEvent: a `#` of its id is `%23`, since a source may have one."""
    if re.search("#|%2[35]", name):
        name = name.replace("%", "%25").replace("#", "%23")
    return f"{source}#{name}"


def new_event_id() -> str:
    """An id of the form of UUID version 7 (RFC 9562): later ids are greater, to the millisecond."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    version = value & ~(0xF << 76) | 0x7 << 76
    return str(UUID(int=version & ~(0x3 << 62) | 0x2 << 62))


def with_ids(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of plain events, each with an id: if `send` raises, send them again without duplicates."""
    return [{**event, "event_id": event.get("event_id") or new_event_id()} for event in events]


def _document(event: Any) -> dict[str, Any] | None:
    """The members of an event, with an id; None: it is not an event."""
    if isinstance(event, Mapping):
        name = "id" if "specversion" in event else "event_id"
        return {**event, name: event[name] if event.get(name) is not None else new_event_id()}
    if not hasattr(event, "get_attributes") or not hasattr(event, "get_data"):
        return None
    attributes = {name: value for name, value in event.get_attributes().items() if value is not None}
    data = event.get_data()
    is_binary = isinstance(data, (bytes, bytearray))
    content = {"data_base64": base64.b64encode(data).decode()} if is_binary else {"data": data}
    return {"specversion": _VERSION, "id": new_event_id(), **attributes, **content}


def _unwritable(index: int, event_id: str | None, document: Any, error: Exception) -> Verdict:
    is_cyclic = "Circular" in str(error)
    place = None if is_cyclic else unwritable(document)
    if place is None:
        why = "it contains itself" if is_cyclic else clean(error)
        return _refused(index, event_id, _UNDECODABLE, f"the event cannot be written as JSON: {why}")
    pointer, why = place
    return Verdict(
        index, event_id, "refused", _UNDECODABLE, pointer, f"the event cannot be written as JSON: {why}"
    )


def _sendable(event_id: str) -> str | None:
    """The id, if it is text that can be written."""
    return None if unwritable(event_id) else event_id


def _to_json(value: Any) -> Any:
    if isinstance(value, date):  # datetime is one
        return time_text(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a value of JSON")


def _refused(index: int, event_id: str | None, reason: str, detail: str) -> Verdict:
    return Verdict(index, event_id, "refused", reason, None, detail)


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_to_json)
