"""Rows of any source but tables as events, of entities or their own; what is no row as a dead letter to be.

A value is JSON as its source has it (`msgspec.Raw`), or one that JSON can hold exactly.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from pulse_pipelines.domain.entities import DELETED, DELETION, ID, content
from pulse_pipelines.domain.event import Rejected, parse_timestamp

LONGEST = 3 * 1024 * 1024
"""Bytes of an event that is sent whole: what is beyond Pulse's limit for events is a dead letter anyway."""
KEPT = 10_000
"""Bytes of a row that is no entity which its dead letter has."""

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_NO_ZONE = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?", re.ASCII)
_HOURS = re.compile(_NO_ZONE.pattern + r"[+-]\d\d", re.ASCII)
"""As Postgres writes timestamps with a zone."""

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])

Event = tuple[bytes, bytes]
"""The key of a message, and the event."""


@dataclass(frozen=True)
class Maker:
    """Makes the events of a dataset: of entities all of one moment, of events each at its own."""

    dataset: str
    moment: str
    key: tuple[str, ...]
    timestamp: str | None = None
    """Member of a row that is the time of its event; None: rows are entities."""

    def event(self, row: Mapping[str, Any], file: str, line: int) -> Event:
        """The event of a row; without its key, or too large, it is one that becomes a dead letter."""
        found = key_of(row, self.key)
        if found is None:
            why = f"the row has no {' and no '.join(self.key)}"
            return self.refused(as_text(row), file, line, why)
        event = {"event_id": found, "dataset": self.dataset}
        event |= self._entity(row) if self.timestamp is None else self._event(row, file, line)
        try:
            payload = msgspec.json.encode(event)
        except (UnicodeEncodeError, ValueError) as error:
            return self.refused(
                as_text(row), file, line, f"the row is not text: {type(error).__name__}", found
            )
        if len(payload) > LONGEST:
            return self.refused(payload, file, line, f"the row has {len(payload):,} bytes", found)
        return found.encode(), payload

    def _entity(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """What the event of an entity has beside its id and dataset."""
        found: dict[str, Any] = {"timestamp": self.moment, "data": content(row)}
        return found | {DELETION: row[DELETED]} if DELETED in row else found

    def _event(self, row: Mapping[str, Any], file: str, line: int) -> dict[str, Any]:
        """What an event has beside its id and dataset: its time, and the row less what the envelope has.

        Without a time it is one that becomes a dead letter, which has all of the row, and where it is.
        """
        name, of_envelope = str(self.timestamp), {ID} & set(self.key)
        data = {member: value for member, value in row.items() if member not in of_envelope}
        text = time_of(row.get(name))
        parsed = parse_timestamp(text)
        if not isinstance(parsed, Rejected):
            data.pop(name, None)
            return {"timestamp": text, "data": data}
        why = f"{name}: {parsed.detail}" if name in row else f"the row has no {name}"
        return {"timestamp": text, "data": data, "context": {"file": file, "line": line, "error": why}}

    def refused(self, text: bytes, file: str, line: int, why: str, entity_id: str | None = None) -> Event:
        """An event that no validator accepts, with what a person has to know to find the row."""
        event: dict[str, Any] = {} if entity_id is None else {"event_id": entity_id}
        event |= {
            "dataset": self.dataset,
            "timestamp": self.moment,
            "context": {"file": file, "line": line, "error": why},
            "data": text[:KEPT].decode(errors="replace"),
        }
        return (entity_id or "").encode(), msgspec.json.encode(event)


def as_text(row: Mapping[str, Any]) -> bytes:
    """A row for people to read: JSON, in which what no JSON can hold is escaped."""
    try:
        return msgspec.json.encode(row)
    except (UnicodeEncodeError, ValueError):
        told = {
            name: bytes(value).decode(errors="replace") if isinstance(value, msgspec.Raw) else value
            for name, value in row.items()
        }
        return json.dumps(told, default=str).encode()


def members(text: bytes) -> dict[str, msgspec.Raw]:
    """The members of a JSON object. Raises ValueError: it is none."""
    try:
        return _object.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"the line is no JSON object: {why}") from None


def key_of(row: Mapping[str, Any], key: Sequence[str]) -> str | None:
    """The `_id` of a row: its key as text, of several members a JSON array of texts. None: it has none."""
    texts = [_text(row.get(name)) for name in key]
    if any(not text for text in texts):
        return None
    found = str(texts[0]) if len(texts) == 1 else json.dumps(texts, ensure_ascii=False)
    try:
        found.encode()
    except UnicodeEncodeError:
        return None
    return found


def time_of(value: Any) -> str | None:
    """The time of an event from a row's value, in UTC if it has no zone; None: the value is no text.

    A text that is no time stays as it is: the validator of events refuses it.
    """
    value = _decoded(value)
    if not isinstance(value, str):
        return None
    if _DATE.fullmatch(value):
        return f"{value}T00:00:00Z"
    if _NO_ZONE.fullmatch(value):
        return f"{value}Z"
    return f"{value}:00" if _HOURS.fullmatch(value) else value


def is_container(value: msgspec.Raw) -> bool:
    """Whether it is an object or an array: decoded, 4 MB of `{},{}` would take a hundred."""
    return bytes(memoryview(value)[:1]) in (b"{", b"[")


def _decoded(value: Any) -> Any:
    """A scalar of JSON; None: it is an object or a list, or its bytes are not text."""
    if isinstance(value, msgspec.Raw) and is_container(value):
        return None
    try:
        return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _text(value: Any) -> str | None:
    if isinstance(value, msgspec.Raw) and bytes(value)[:1] not in b'"nt{[f':
        return bytes(value).decode()
    value = _decoded(value)
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return msgspec.json.encode(value).decode()
    return None
