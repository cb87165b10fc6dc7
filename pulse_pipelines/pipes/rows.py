"""Rows of files, feeds and transforms as events, of entities or their own, or as dead letters.

A value is JSON as its source has it (`msgspec.Raw`), or one that JSON can hold exactly.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from pulse_pipelines.domain.entities import DELETED, DELETION, ID, content
from pulse_pipelines.domain.event import Rejected, parse_timestamp
from pulse_pipelines.domain.not_json import clearer

LONGEST = 3 * 1024 * 1024
"""Bytes of an event that is sent whole: beyond Pulse's limit for events it is a dead letter anyway."""
EXCERPT_BYTES = 10_000
"""Bytes of an invalid row that its dead letter keeps."""
_EXPLAINED_BYTES = 64 * 1024

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_NO_ZONE = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?", re.ASCII)
_HOURS = re.compile(_NO_ZONE.pattern + r"[+-]\d\d", re.ASCII)
"""As Postgres writes timestamps with a zone."""

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])

Event = tuple[bytes, bytes]
"""The key of a message, and the event."""


@dataclass(frozen=True)
class Maker:
    """Makes the events of a dataset: those of entities have one time, events each their own."""

    dataset: str
    moment: str
    key: tuple[str, ...]
    timestamp: str | None = None
    """Member of a row that is the time of its event; None: rows are entities."""

    def event(self, row: Mapping[str, Any], file: str, line: int) -> Event:
        """The event of a row; without its key, or too large, it is one that becomes a dead letter."""
        row_key = key_of(row, self.key)
        if row_key is None:
            why = f"the row has no {' and no '.join(self.key)}"
            return self.refused(as_text(row), file, line, why)
        event = {"event_id": row_key, "dataset": self.dataset}
        event |= self._entity(row) if self.timestamp is None else self._event(row, file, line)
        try:
            payload = msgspec.json.encode(event)
        except (UnicodeEncodeError, ValueError) as error:
            return self.refused(as_text(row), file, line, _unwritable(row, error), row_key)
        if len(payload) > LONGEST:
            return self.refused(payload, file, line, f"the row has {len(payload):,} bytes", row_key)
        return row_key.encode(), payload

    def _entity(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The members of an entity's event, except its id and dataset."""
        members: dict[str, Any] = {"timestamp": self.moment, "data": content(row)}
        return members | {DELETION: row[DELETED]} if DELETED in row else members

    def _event(self, row: Mapping[str, Any], file: str, line: int) -> dict[str, Any]:
        """The members of an event, except its id and dataset: its time, and the rest of the row.

        Without a time it becomes a dead letter, which has the whole row and its place.
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
        """An event that no validator accepts, with the place of the row for a person."""
        event: dict[str, Any] = {} if entity_id is None else {"event_id": entity_id}
        event |= {
            "dataset": self.dataset,
            "timestamp": self.moment,
            "context": {"file": file, "line": line, "error": why},
            "data": text[:EXCERPT_BYTES].decode(errors="replace"),
        }
        return (entity_id or "").encode(), msgspec.json.encode(event)


def _unwritable(row: Mapping[str, Any], error: ValueError) -> str:
    """Why a row cannot be written as JSON in UTF-8."""
    if not isinstance(error, UnicodeEncodeError):
        return f"the row cannot be written as JSON: {clearer('', error)}"
    for name, value in row.items():
        try:
            msgspec.json.encode(value)
        except UnicodeEncodeError:
            return f"{name} is not UTF-8"
        except ValueError:
            continue
    return "the row is not UTF-8"


def as_text(row: Mapping[str, Any]) -> bytes:
    """A row as JSON for people, with bytes escaped that JSON cannot hold."""
    try:
        return msgspec.json.encode(row)
    except (UnicodeEncodeError, ValueError):
        readable = {
            name: bytes(value).decode(errors="replace") if isinstance(value, msgspec.Raw) else value
            for name, value in row.items()
        }
        return json.dumps(readable, default=str).encode()


def members(text: bytes) -> dict[str, msgspec.Raw]:
    """The members of a JSON object. Raises ValueError if the text is not one."""
    try:
        return _object.decode(text)
    except RecursionError:
        raise ValueError("the line is not a JSON object: it is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the line is not a JSON object: {_fault(text, str(error))}") from None


def _fault(text: bytes, otherwise: str) -> str:
    """What is wrong with a text and at which character, by a decoder that names it better."""
    if len(text) > _EXPLAINED_BYTES:  # that decoder makes objects of what it reads
        return otherwise
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return str(clearer(text, error))
    return otherwise


def key_of(row: Mapping[str, Any], key: Sequence[str]) -> str | None:
    """The `_id` of a row: its key as text, of several members a JSON array of texts. None: it has none."""
    texts = [_text(row.get(name)) for name in key]
    if any(not text for text in texts):
        return None
    row_key = str(texts[0]) if len(texts) == 1 else json.dumps(texts, ensure_ascii=False)
    try:
        row_key.encode()
    except UnicodeEncodeError:
        return None
    return row_key


def time_of(value: Any) -> str | None:
    """The time of an event from a row's value, in UTC if it has no zone; None if the value is not text.

    A text that is not a time stays as it is: the validator of events refuses it.
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
