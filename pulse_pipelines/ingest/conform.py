"""Conforming: turns received bytes into typed rows of a dataset, or into dead letters. No I/O.

The loop over events does only what needs Python; typing is done a column at a time in Arrow. Each event
is validated on its own: its neighbours in a chunk can never change its verdict, unless the tenant's events
use up the time budget for validating all of them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pulse_pipelines.domain import entities, json_values
from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.event import Rejected, json_pointer
from pulse_pipelines.domain.event_limits import Budget, EventLimits
from pulse_pipelines.domain.schemas.columns import Column
from pulse_pipelines.tables import arrow_columns, raw_zone
from pulse_pipelines.tables.column_types import TIMESTAMP
from pulse_pipelines.tables.iceberg_schema import HASH, IS_DELETED, UPDATED
from pulse_pipelines.tables.raw_zone import Message
from pulse_pipelines.validation.quick import Quick
from pulse_pipelines.validation.validator import Event, Target, Validator
from pulse_resources.process import faults

PIECE = 256
"""Messages per call of the fast decoder: if it fails on one, each is decoded alone."""
MISSES = 64
"""Decoder failures beyond half of the events read so far after which a chunk goes to the validator only."""


class DeadLetter(NamedTuple):
    message: Message
    dataset: str | None
    event_id: str | None
    rejected: Rejected


@dataclass
class Conformed:
    tables: dict[str, pa.Table] = field(default_factory=dict)
    """By dataset slug: typed rows in received order, plus the `_raw` column."""
    dead_letters: list[DeadLetter] = field(default_factory=list)


@dataclass
class _Accepted:
    """Events of one dataset, from the fast decoder or from the validator."""

    events: list[Any] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """Indexes of their messages in the chunk."""


class _Values(NamedTuple):
    """The values of events, by attribute."""

    ids: list[str]
    timestamps: list[str]
    contexts: list[Any]
    trace_ids: list[str | None]
    versions: list[int | None]
    declared: Callable[[Column], list[Any]]
    extras: pa.Array
    """Members that the schema does not declare, as JSON text."""
    physical: Mapping[str, pa.Array] = MappingProxyType({})
    """Columns that only versions of entities have."""


class TopicConformer:
    """Conforms the messages of one tenant's topic.

    Args:
        scope: the tenant and its datasets.
        batch_id: stored in the rows' `_batch`.
        limits: an event that breaks one of them is a dead letter. All events share
            `batch_validation_seconds`.
    """

    def __init__(self, scope: Scope, batch_id: str, limits: EventLimits) -> None:
        self._tenant = scope.tenant
        self._validator = Validator(scope, limits, Budget(limits.batch_validation_seconds))
        self._batch_id = batch_id

    def chunk(self, messages: Sequence[Message]) -> Conformed:
        """Validate every message; accepted ones come back as one Arrow table per dataset."""
        faults.poison(message.payload for message in messages)
        result = Conformed()
        decoded, validated = ({slug: _Accepted() for slug in self._validator.targets} for _ in range(2))
        validate, quick = self._validator.payload, self._validator.quick
        of_type = {kind: decoded[slug] for kind, slug in quick.slugs.items()} if quick else {}
        undecoded: list[int] = []
        for place, event in enumerate(self._decoded(messages)):
            if event is None:
                undecoded.append(place)
                continue
            accepted = of_type[type(event)]
            accepted.events.append(event)
            accepted.places.append(place)
        unusual = set(arrow_columns.unusual([messages[place].payload for place in undecoded]))
        for index, place in enumerate(undecoded):
            message, plain = messages[place], index not in unusual
            verdict = validate(message.payload, plain=plain)
            if isinstance(verdict, dict):
                accepted = validated[verdict["dataset"]]
                accepted.events.append(verdict if plain else json_values.exact(message.payload))
                accepted.places.append(place)
            else:
                letter = DeadLetter(message, verdict.dataset, verdict.event_id, verdict.rejected)
                result.dead_letters.append(letter)
        ways: list[tuple[Mapping[str, _Accepted], Callable[[Target, Sequence[Any]], _Values]]]
        ways = [(validated, _of_validated)]
        if quick is not None:
            ways.insert(0, (decoded, partial(_of_decoded, quick)))
        for slug, target in self._validator.targets.items():
            parts = [
                self._table(target, values(target, accepted.events), accepted.places, messages, result)
                for accepted, values in ((way[slug], values) for way, values in ways)
                if accepted.events
            ]
            table = _in_order(parts) if parts else None
            if table is not None and table.num_rows:
                result.tables[slug] = table
        return result

    def _decoded(self, messages: Sequence[Message]) -> Iterator[Any]:
        """Events from the fast decoder, in order; None for those that the validator must check."""
        missed = 0
        for start in range(0, len(messages), PIECE):
            piece = messages[start : start + PIECE]
            if missed > MISSES + start // 2:
                yield from repeat(None, len(piece))
                continue
            events = self._validator.decoded([message.payload for message in piece])
            missed += events.count(None)
            yield from events

    def _table(
        self,
        target: Target,
        values: _Values,
        places: list[int],
        chunk: Sequence[Message],
        result: Conformed,
    ) -> tuple[pa.Table, list[int]]:
        """Rows of accepted events, and their places; events with unfit values become dead letters."""
        rejects: dict[int, Rejected] = {}
        messages = chunk if len(places) == len(chunk) else [chunk[place] for place in places]
        count = len(messages)
        timestamp = arrow_columns.timestamps(values.timestamps, rejects, "/timestamp")
        received = pa.array([m.received_ms for m in messages], pa.int64())
        arrow_columns.refuse_untimely(timestamp, received, self._validator.limits, rejects)
        versions = [version or target.version for version in values.versions]
        named = [index for index, version in enumerate(versions) if version != target.version]
        arrays: dict[str, pa.Array] = {
            "id": pa.array(values.ids, pa.string()),
            "tenant_id": pa.repeat(pa.scalar(str(self._tenant.tenant_id)), count),
            "dataset_id": pa.repeat(pa.scalar(str(target.dataset.dataset_id)), count),
            "timestamp": timestamp,
            "ingested_at": received.cast(pa.timestamp("ms", "UTC")).cast(TIMESTAMP),
            "context": pa.array([arrow_columns.json_text(c) for c in values.contexts], pa.string()),
            "trace_id": pa.array(values.trace_ids, pa.string()),
            "schema_version": pa.array(versions, pa.int32()),
            "_batch": pa.repeat(pa.scalar(self._batch_id), count),
            "_kafka_partition": pa.array([m.partition for m in messages], pa.int32()),
            "_offset": pa.array([m.offset for m in messages], pa.int64()),
            "_extra": values.extras,
        }
        arrays.update(values.physical)
        for column in target.columns:
            unsure = named if column.certain else range(count)
            arrays[column.name] = _declared(column, values.declared(column), unsure, rejects)
        table = pa.Table.from_arrays([arrays[name] for name in target.schema.names], schema=target.schema)
        table = table.append_column(raw_zone.LINE, raw_zone.lines(messages))
        if not rejects:
            return table, places
        slug = target.dataset.slug
        result.dead_letters.extend(
            DeadLetter(messages[index], slug, values.ids[index], rejected)
            for index, rejected in sorted(rejects.items())
        )
        fitting = [index for index in range(count) if index not in rejects]
        return table.take(pa.array(fitting, pa.int64())), [places[index] for index in fitting]


def _of_decoded(quick: Quick, target: Target, events: Sequence[Any]) -> _Values:
    datas = [event.data for event in events]
    physical: dict[str, pa.Array] = {}
    if target.of_entities:
        physical = _of_entities(quick.canonical(target.dataset, datas), [False] * len(datas))
    return _Values(
        ids=[event.event_id for event in events],
        timestamps=[event.timestamp for event in events],
        contexts=[event.context for event in events],
        trace_ids=[event.trace_id for event in events],
        versions=[event.schema_version for event in events],
        declared=lambda column: quick.column(target.dataset, column.field, datas),
        extras=pa.nulls(len(events), pa.string()),
        physical=physical,
    )


def _of_validated(target: Target, events: Sequence[Event]) -> _Values:
    physical: dict[str, pa.Array] = {}
    datas = [event["data"] for event in events]
    if target.of_entities:
        deleted = [event.get(entities.DELETION) is True for event in events]
        datas = [
            {} if is_deleted else entities.content(data)
            for data, is_deleted in zip(datas, deleted, strict=True)
        ]
        physical = _of_entities(map(entities.canonical, datas), deleted)
    return _Values(
        ids=[event["event_id"] for event in events],
        timestamps=[event["timestamp"] for event in events],
        contexts=[event.get("context") for event in events],
        trace_ids=[event.get("trace_id") for event in events],
        versions=[event.get("schema_version") for event in events],
        declared=lambda column: [data.get(column.field) for data in datas],
        extras=arrow_columns.extras(datas, target.columns),
        physical=physical,
    )


def _of_entities(contents: Iterable[bytes], deleted: Sequence[bool]) -> dict[str, pa.Array]:
    """The columns that only entities have; `UPDATED` is filled in when they land.

    Args:
        contents: as canonical JSON.
    """
    hashes = [
        None if is_deleted else entities.content_hash(content)
        for content, is_deleted in zip(contents, deleted, strict=True)
    ]
    return {
        UPDATED: pa.array([0] * len(deleted), pa.int64()),
        HASH: pa.array(hashes, pa.string()),
        IS_DELETED: pa.array(deleted, pa.bool_()),
    }


def _in_order(parts: Sequence[tuple[pa.Table, list[int]]]) -> pa.Table:
    """The rows of both tables in received order."""
    if len(parts) == 1:
        return parts[0][0]
    places = pa.array([place for _, of_part in parts for place in of_part], pa.int64())
    return pa.concat_tables(table for table, _ in parts).take(pc.sort_indices(places))


def _declared(
    column: Column, values: list[Any], unsure: Sequence[int], rejects: dict[int, Rejected]
) -> pa.Array:
    """The column of a declared field; `unsure`: indexes of events whose schema may not guarantee its type."""
    pointer = "/data" + json_pointer([column.field])
    arrow_columns.refuse_misfits(values, column.type, unsure, rejects, pointer)
    return arrow_columns.array(values, column.type, rejects, pointer)
