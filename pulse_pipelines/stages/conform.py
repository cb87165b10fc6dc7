"""Conform: received bytes become typed rows of a dataset, or dead letters. No I/O.

The loop over events does only what needs Python; typing is done a column at a time in Arrow. An event
is judged alone: its neighbours in a chunk can never change its verdict.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.event import (
    MAX_ID_BYTES,
    Reason,
    Rejected,
    json_pointer,
    nesting,
    suspicious,
    unstorable,
)
from pulse_pipelines.domain.schema import Column, validator
from pulse_pipelines.stages import columns
from pulse_pipelines.stages.handles import Scope

RAW = "_raw"
"""Column that carries the raw-zone line of a row until the files are written."""


class Message(NamedTuple):
    """One Kafka message: `received_ms` is the broker's append time."""

    partition: int
    offset: int
    received_ms: int
    payload: bytes


class DeadLetter(NamedTuple):
    message: Message
    dataset: str | None
    event_id: str | None
    rejected: Rejected


class _Accepted(NamedTuple):
    event: dict[str, Any]
    message: Message


@dataclass
class Conformed:
    tables: dict[str, pa.Table] = field(default_factory=dict)
    """By dataset slug: typed rows in received order, plus the `_raw` column."""
    dead_letters: list[DeadLetter] = field(default_factory=list)


class Target:
    """A dataset made ready for conforming: compiled validator and column types."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.is_valid = validator(dataset.schema).is_valid
        self.columns = dataset.columns
        self.schema = columns.arrow_schema(dataset.table_schema)

    @cached_property
    def _validator(self) -> Any:
        return validator(self.dataset.schema)

    def violation(self, data: object) -> Rejected:
        """The first way in which `data` breaks the schema."""
        error = next(iter(self._validator.iter_errors(data)))
        pointer = "/data" + json_pointer(list(error.instance_path))
        return Rejected(Reason.SCHEMA_VIOLATION, str(error.message)[:2000], pointer)


class TopicConformer:
    """Conforms the messages of one tenant's topic.

    Args:
        scope: the tenant and its datasets.
        batch_id: stored in the rows' `_batch`.
        max_bytes: larger payloads are dead letters.
        max_depth: so are more deeply nested ones.
    """

    def __init__(self, scope: Scope, batch_id: str, *, max_bytes: int, max_depth: int) -> None:
        self._tenant = scope.tenant
        self._own_names = (None, scope.tenant.slug, str(scope.tenant.tenant_id))
        self._targets = {dataset.slug: Target(dataset) for dataset in scope.datasets}
        self._batch_id = batch_id
        self._max_bytes = max_bytes
        self._max_depth = max_depth

    def chunk(self, messages: Sequence[Message]) -> Conformed:
        """Judge every message; accepted ones come back as one Arrow table per dataset."""
        result = Conformed()
        accepted: dict[str, list[_Accepted]] = {slug: [] for slug in self._targets}
        judge = self._judge
        for message in messages:
            event = judge(message)
            if isinstance(event, dict):
                accepted[event["dataset"]].append(_Accepted(event, message))
            else:
                result.dead_letters.append(event)
        for slug, rows in accepted.items():
            if rows:
                table, rejects = self._table(self._targets[slug], rows)
                result.dead_letters.extend(rejects)
                if table.num_rows:
                    result.tables[slug] = table
        return result

    def _judge(self, message: Message) -> "dict[str, Any] | DeadLetter":
        payload = message.payload
        if len(payload) > self._max_bytes:
            detail = f"{len(payload):,} bytes, the limit is {self._max_bytes:,}"
            return DeadLetter(message, None, None, Rejected(Reason.OVERSIZE, detail))
        if payload.count(b"{") + payload.count(b"[") > self._max_depth and nesting(payload) > self._max_depth:
            detail = f"nested deeper than {self._max_depth} levels"
            return DeadLetter(message, None, None, Rejected(Reason.TOO_DEEP, detail))
        try:
            event = orjson.loads(payload)
        except orjson.JSONDecodeError as error:
            detail = f"not JSON: {error}"
            return DeadLetter(message, None, None, Rejected(Reason.UNDECODABLE, detail))
        rejected = self._envelope(event)
        if rejected is None:
            if suspicious(payload) and (rejected := unstorable(payload)):
                pass
            else:
                target = self._targets[event["dataset"]]
                data = event["data"]
                if target.is_valid(data):
                    return event  # type: ignore[no-any-return]
                rejected = target.violation(data)
        return _dead_letter(message, event, rejected)

    def _envelope(self, event: Any) -> Rejected | None:
        if type(event) is not dict:
            return Rejected(Reason.INVALID_ENVELOPE, "the event is not a JSON object", "")
        get = event.get
        if get("tenant") not in self._own_names:
            return Rejected(Reason.WRONG_TENANT, "the event names another tenant", "/tenant")
        dataset = get("dataset")
        if type(dataset) is not str or not dataset:
            return Rejected(Reason.MISSING_DATASET, "dataset is missing or not a string", "/dataset")
        if dataset not in self._targets:
            return Rejected(
                Reason.UNKNOWN_DATASET, f"the tenant has no dataset {dataset[:100]!r}", "/dataset"
            )
        event_id = get("event_id")
        if type(event_id) is not str or not 0 < len(event_id.encode()) <= MAX_ID_BYTES:
            detail = f"event_id must be a string of 1 to {MAX_ID_BYTES} bytes"
            return Rejected(Reason.INVALID_ENVELOPE, detail, "/event_id")
        if type(get("timestamp")) is not str:
            return Rejected(Reason.INVALID_TIMESTAMP, "timestamp is missing or not a string", "/timestamp")
        if type(get("data")) is not dict:
            return Rejected(Reason.INVALID_ENVELOPE, "data is missing or not an object", "/data")
        trace_id = get("trace_id")
        if trace_id is not None and type(trace_id) is not str:
            return Rejected(Reason.INVALID_ENVELOPE, "trace_id is not a string", "/trace_id")
        return None

    def _table(self, target: Target, accepted: Sequence[_Accepted]) -> tuple[pa.Table, list[DeadLetter]]:
        events = [row.event for row in accepted]
        messages = [row.message for row in accepted]
        datas = [event["data"] for event in events]
        rejects: dict[int, Rejected] = {}
        count = len(events)
        timestamp = columns.timestamps([e["timestamp"] for e in events], rejects, "/timestamp")
        received = pa.array([m.received_ms for m in messages], pa.int64())
        contexts = [e.get("context") for e in events]
        arrays: dict[str, pa.Array] = {
            "id": pa.array([e["event_id"] for e in events], pa.string()),
            "tenant_id": pa.repeat(pa.scalar(str(self._tenant.tenant_id)), count),
            "dataset_id": pa.repeat(pa.scalar(str(target.dataset.dataset_id)), count),
            "timestamp": timestamp,
            "ingested_at": received.cast(pa.timestamp("ms", "UTC")).cast(columns.TIMESTAMP),
            "context": pa.array([columns.json_text(c) for c in contexts], pa.string()),
            "trace_id": pa.array([e.get("trace_id") for e in events], pa.string()),
            "schema_version": pa.repeat(pa.scalar(target.dataset.schema_version, pa.int32()), count),
            "_batch": pa.repeat(pa.scalar(self._batch_id), count),
            "_kafka_partition": pa.array([m.partition for m in messages], pa.int32()),
            "_offset": pa.array([m.offset for m in messages], pa.int64()),
            "_extra": columns.extras(datas, target.columns),
        }
        for column in target.columns:
            arrays[column.name] = _declared(column, datas, rejects)
        table = pa.Table.from_arrays([arrays[name] for name in target.schema.names], schema=target.schema)
        table = table.append_column(RAW, raw_lines(messages))
        dead = [
            _dead_letter(messages[index], events[index], rejected)
            for index, rejected in sorted(rejects.items())
        ]
        if dead:
            keep = [index not in rejects for index in range(count)]
            table = table.filter(pa.array(keep, pa.bool_()))
        return table, dead


def _declared(column: Column, datas: Sequence[dict[str, Any]], rejects: dict[int, Rejected]) -> pa.Array:
    name = column.field
    pointer = "/data" + json_pointer([name])
    return columns.array([data.get(name) for data in datas], column.type, rejects, pointer)


def _dead_letter(message: Message, event: Any, rejected: Rejected) -> DeadLetter:
    """A dead letter with as much of its identity as could be read and stored."""
    names: list[str | None] = [None, None]
    if type(event) is dict:
        for index, key in enumerate(("dataset", "event_id")):
            value = event.get(key)
            if type(value) is str and "\0" not in value:
                names[index] = value[:MAX_ID_BYTES]
    return DeadLetter(message, names[0], names[1], rejected)


def raw_lines(messages: Sequence[Message]) -> pa.LargeBinaryArray:
    """The raw-zone lines of messages whose payloads are JSON: origin plus the event, unchanged."""
    parts = (
        b'{"partition":',
        pa.array([m.partition for m in messages], pa.int32()).cast(pa.string()),
        b',"offset":',
        pa.array([m.offset for m in messages], pa.int64()).cast(pa.string()),
        b',"received_ms":',
        pa.array([m.received_ms for m in messages], pa.int64()).cast(pa.string()),
        b',"event":',
        pa.array(_one_line_each(messages), pa.large_binary()),
        b"}\n",
    )
    columns_ = (pa.scalar(p, pa.large_binary()) if isinstance(p, bytes) else p for p in parts)
    binary = (c.cast(pa.large_binary()) for c in columns_)
    return pc.binary_join_element_wise(*binary, pa.scalar(b"", pa.large_binary()))


def _one_line_each(messages: Sequence[Message]) -> list[bytes]:
    """Line breaks can stand only between JSON tokens, so a space in their place is the same event."""
    payloads = [message.payload for message in messages]
    joined = b"".join(payloads)
    if b"\n" in joined or b"\r" in joined:
        return [payload.replace(b"\n", b" ").replace(b"\r", b" ") for payload in payloads]
    return payloads


def days(table: pa.Table) -> pa.Array:
    """The UTC day of each row, by its event timestamp."""
    return pc.cast(pc.floor_temporal(table.column("timestamp"), unit="day"), pa.date32())
