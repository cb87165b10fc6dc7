"""Conform: received bytes become typed rows of a dataset, or dead letters. No I/O.

The loop over events does only what needs Python; typing is done a column at a time in Arrow. An event
is judged alone: its neighbours in a chunk can never change its verdict, unless they are the tenant's own and
use up the time that judging them all may take.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from pulse_pipelines.domain.event import Rejected, json_pointer
from pulse_pipelines.domain.limits import Budget, EventLimits
from pulse_pipelines.domain.schema import Column
from pulse_pipelines.domain.scope import Scope
from pulse_pipelines.tables import arrow_columns, raw_zone
from pulse_pipelines.tables.column_types import TIMESTAMP
from pulse_pipelines.tables.raw_zone import Message
from pulse_pipelines.validation.validator import Event, Refusal, Target, Validator, refusal


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


class TopicConformer:
    """Conforms the messages of one tenant's topic.

    Args:
        scope: the tenant and its datasets.
        batch_id: stored in the rows' `_batch`.
        limits: an event that breaks one of them is a dead letter; all events share `judge_batch_seconds`.
    """

    def __init__(self, scope: Scope, batch_id: str, limits: EventLimits) -> None:
        self._tenant = scope.tenant
        self._judge = Validator(scope, limits, Budget(limits.judge_batch_seconds))
        self._batch_id = batch_id

    def chunk(self, messages: Sequence[Message]) -> Conformed:
        """Validate every message; accepted ones come back as one Arrow table per dataset."""
        result = Conformed()
        targets = self._judge.targets
        accepted: dict[str, tuple[list[Event], list[Message]]] = {slug: ([], []) for slug in targets}
        judge = self._judge.payload
        for message in messages:
            verdict = judge(message.payload)
            if isinstance(verdict, dict):
                events, origins = accepted[verdict["dataset"]]
                events.append(verdict)
                origins.append(message)
            else:
                result.dead_letters.append(_dead_letter(message, verdict))
        for slug, (events, origins) in accepted.items():
            if events:
                table, rejects = self._table(targets[slug], events, origins)
                result.dead_letters.extend(rejects)
                if table.num_rows:
                    result.tables[slug] = table
        return result

    def _table(
        self, target: Target, events: Sequence[Event], messages: Sequence[Message]
    ) -> tuple[pa.Table, list[DeadLetter]]:
        datas = [event["data"] for event in events]
        rejects: dict[int, Rejected] = {}
        count = len(events)
        timestamp = arrow_columns.timestamps([e["timestamp"] for e in events], rejects, "/timestamp")
        received = pa.array([m.received_ms for m in messages], pa.int64())
        arrow_columns.refuse_untimely(timestamp, received, self._judge.limits, rejects)
        contexts = [e.get("context") for e in events]
        versions = [e.get("schema_version") or target.version for e in events]
        named = [index for index, version in enumerate(versions) if version != target.version]
        arrays: dict[str, pa.Array] = {
            "id": pa.array([e["event_id"] for e in events], pa.string()),
            "tenant_id": pa.repeat(pa.scalar(str(self._tenant.tenant_id)), count),
            "dataset_id": pa.repeat(pa.scalar(str(target.dataset.dataset_id)), count),
            "timestamp": timestamp,
            "ingested_at": received.cast(pa.timestamp("ms", "UTC")).cast(TIMESTAMP),
            "context": pa.array([arrow_columns.json_text(c) for c in contexts], pa.string()),
            "trace_id": pa.array([e.get("trace_id") for e in events], pa.string()),
            "schema_version": pa.array(versions, pa.int32()),
            "_batch": pa.repeat(pa.scalar(self._batch_id), count),
            "_kafka_partition": pa.array([m.partition for m in messages], pa.int32()),
            "_offset": pa.array([m.offset for m in messages], pa.int64()),
            "_extra": arrow_columns.extras(datas, target.columns),
        }
        for column in target.columns:
            arrays[column.name] = _declared(column, datas, named, rejects)
        table = pa.Table.from_arrays([arrays[name] for name in target.schema.names], schema=target.schema)
        table = table.append_column(raw_zone.LINE, raw_zone.lines(messages))
        dead = [
            _dead_letter(messages[index], refusal(events[index], rejected))
            for index, rejected in sorted(rejects.items())
        ]
        if dead:
            keep = [index not in rejects for index in range(count)]
            table = table.filter(pa.array(keep, pa.bool_()))
        return table, dead


def _declared(
    column: Column, datas: Sequence[dict[str, Any]], named: Sequence[int], rejects: dict[int, Rejected]
) -> pa.Array:
    """A declared field's column; `named` are the events that follow another version than the dataset."""
    name = column.field
    pointer = "/data" + json_pointer([name])
    values = [data.get(name) for data in datas]
    arrow_columns.refuse_misfits(values, column.type, named, rejects, pointer)
    return arrow_columns.array(values, column.type, rejects, pointer)


def _dead_letter(message: Message, refused: Refusal) -> DeadLetter:
    return DeadLetter(message, refused.dataset, refused.event_id, refused.rejected)
