"""States of datasets of events: the newest event per value of a column, the key, in Postgres.

The newest is the greatest by timestamp, then by place in the topic. So whatever is merged again, late or in
another order gives the same state. Of each file that a batch writes, the task that writes it brings the
newest event of each key (`frame`); the transaction that lands the files merges these (`merge`).

A state has *marks*: how often it came to lack what its table has. It is complete if it was built from the
table (`states.state_build`) since the last one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pulse_pipelines.domain import json_values
from pulse_pipelines.domain.as_sent import event_data
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.schemas.columns import Column, Kind
from pulse_pipelines.states import window_buckets
from pulse_pipelines.tables.arrow_streams import packed, unpacked
from pulse_pipelines.tables.parquet_files import positions
from pulse_pipelines.tables.written_files import CandidateFile, StateFrame
from pulse_resources import postgres
from pulse_resources.process.faults import fail_point

Numbers = npt.NDArray[np.int64]
Indexes = npt.NDArray[np.intp]
KEY_BYTES = 512
"""Longest key, in UTF-8: an event with a longer one has no place in a state."""
DATA_BYTES = 4_096
"""Largest data of an event, as JSON, that is kept; of a larger one all but its data is."""
FITTING = (Kind.STRING, Kind.LONG)
"""Kinds of columns that can be the key."""

FRAME = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("at", pa.int64()),
        pa.field("position", pa.int64()),
        pa.field("partition", pa.int32()),
        pa.field("event_offset", pa.int64()),
        pa.field("event_id", pa.string()),
        pa.field("data", pa.string()),
    ]
)
# Held until the transaction ends: who writes keys is alone, so that their number is exact. No key of the row
# changes, so whoever refers to it need not wait: a build of windows, which holds these, would wait endlessly.
HOLD = """
SELECT dataset_id, state_id, max_keys - keys FROM event_states
WHERE dataset_id = ANY(%s) ORDER BY dataset_id FOR NO KEY UPDATE
"""
MERGE = """
WITH brought AS MATERIALIZED (
    SELECT * FROM unnest(%(key)s::text[], %(at)s::bigint[], %(partition)s::int[], %(event_offset)s::bigint[],
        %(event_id)s::text[], %(data)s::text[]) AS b (key, at, partition, event_offset, event_id, data)
), newer AS (
    UPDATE event_state_keys k
    SET at = b.at, partition = b.partition, event_offset = b.event_offset, event_id = b.event_id,
        data = b.data
    FROM brought b WHERE k.dataset_id = %(dataset)s AND k.key = b.key
        AND (b.at, b.partition, b.event_offset) > (k.at, k.partition, k.event_offset)
), unknown AS (
    SELECT * FROM brought b WHERE NOT EXISTS (
        SELECT FROM event_state_keys k WHERE k.dataset_id = %(dataset)s AND k.key = b.key COLLATE "C")
), added AS (
    INSERT INTO event_state_keys (tenant_id, dataset_id, key, at, partition, event_offset, event_id, data)
    SELECT %(tenant)s, %(dataset)s, key, at, partition, event_offset, event_id, data
    FROM unknown ORDER BY key COLLATE "C" LIMIT %(room)s RETURNING 1
)
UPDATE event_states SET keys = keys + a.added, left_out = left_out + u.unknown - a.added
FROM (SELECT count(*) AS added FROM added) a, (SELECT count(*) AS unknown FROM unknown) u
WHERE dataset_id = %(dataset)s AND u.unknown > 0
"""
# A build that is under way begins again, whatever it has read of them; a complete state from which nothing
# goes stays complete.
FORGET = """
WITH gone AS (
    DELETE FROM event_state_keys k
    USING unnest(%(partitions)s::int[], %(offsets)s::bigint[]) AS e (partition, event_offset)
    WHERE k.dataset_id = %(dataset)s AND (k.partition, k.event_offset) = (e.partition, e.event_offset)
    RETURNING 1
)
UPDATE event_states SET keys = keys - g.n, marks = marks + 1,
    built = built + (g.n = 0 AND built = marks)::int
FROM (SELECT count(*) AS n FROM gone) g WHERE dataset_id = %(dataset)s RETURNING g.n
"""


def can_be_key(column: Column) -> bool:
    """Whether a dataset can have its state by a column."""
    return column.type.kind in FITTING


def frame(dataset: Dataset, rows: pa.Table) -> StateFrame | None:
    """The newest row per key; None: the dataset has no state."""
    if dataset.state is None:
        return None
    state_id, column = dataset.state
    return _frame(dataset, state_id, *with_keys(column, rows))


def _frame(dataset: Dataset, state_id: int, rows: pa.Table, keys: pa.Array) -> StateFrame:
    at = pc.cast(rows.column("timestamp"), pa.int64()).to_numpy()
    place = positions(rows).to_numpy()
    newest = _newest(keys, at, place)
    newest_rows = rows.take(newest)
    texts = [_text(dataset, row) for row in newest_rows.to_pylist()]
    table = pa.table(
        [
            keys.take(newest),
            pa.array(at[newest]),
            pa.array(place[newest]),
            newest_rows.column("_kafka_partition").cast(pa.int32()),
            newest_rows.column("_offset").cast(pa.int64()),
            newest_rows.column("id").cast(pa.string()),
            pa.array(texts, pa.string()),
        ],
        schema=FRAME,
    )
    return StateFrame(state_id, packed(table))


def with_keys(column: str, rows: pa.Table) -> tuple[pa.Table, pa.Array]:
    """The rows that have a key, and their keys."""
    keys = pc.cast(rows.column(column), pa.string()).combine_chunks()
    usable = pc.fill_null(pc.less_equal(pc.binary_length(keys), KEY_BYTES), False)
    if pc.all(usable).as_py():
        return rows, keys
    return rows.filter(usable), keys.filter(usable)


def with_frame(dataset: Dataset, candidate: CandidateFile, rows: pa.Table) -> CandidateFile:
    """A candidate with its newest events, if the dataset has a state, and with buckets, if it has windows."""
    if dataset.state is None:
        return candidate
    state_id, column = dataset.state
    fitting, keys = with_keys(column, rows)
    state_frame = _frame(dataset, state_id, fitting, keys)
    if dataset.windows is not None:
        state_frame = replace(state_frame, windows=window_buckets.frame(dataset, keys, fitting))
    return replace(candidate, state=state_frame)


def land(
    connection: postgres.Connection,
    tenant_id: UUID,
    files: Mapping[UUID, Sequence[CandidateFile]],
    *,
    rows_are_new: bool = True,
) -> UUID | None:
    """Merge the frames of files into the states of their datasets, in the transaction that lands the files.

    Args:
        files: by dataset.
        rows_are_new: whether none of their rows is in the table; else windows are left to
            `event_windows.changed`.

    Returns:
        A dataset whose state was declared when files of it were written already: they bring nothing, so that
        they must not land. None: all is merged.
    """
    dataset_ids = [dataset_id for dataset_id, file in files.items() if file]
    if not dataset_ids:
        return None
    for dataset_id, state_id, room in connection.execute(HOLD, [dataset_ids]).fetchall():
        frames = [file.state for file in files[dataset_id]]
        if any(state_frame is None or state_frame.state_id != state_id for state_frame in frames):
            return dataset_id  # type: ignore[no-any-return]
        present = [state_frame for state_frame in frames if state_frame is not None]
        merge(connection, tenant_id, dataset_id, room, [state_frame.packed for state_frame in present])
        if rows_are_new and any(state_frame.windows for state_frame in present):
            window_buckets.land(
                connection, tenant_id, dataset_id, [state_frame.windows for state_frame in present]
            )
    return None


def merge(
    connection: postgres.Connection, tenant_id: UUID, dataset_id: UUID, room: int, frames: Iterable[bytes]
) -> None:
    """Merge frames into a state that is held (`HOLD`).

    Args:
        room: number of keys for which there is room.
    """
    newest = _newest_of(frames)
    if not newest.num_rows:
        return
    columns = {name: newest.column(name).to_pylist() for name in newest.column_names if name != "position"}
    fail_point("event_states.before_merge")
    place = {"tenant": tenant_id, "dataset": dataset_id, "room": max(room, 0)}
    connection.execute(MERGE, columns | place)
    fail_point("event_states.after_merge")


def forget(connection: postgres.Connection, dataset_id: UUID, places: Sequence[tuple[int, int]]) -> int:
    """Remove events from a state, by partition and offset, which then is incomplete; returns their number.

    To be called in the transaction that removes them from the table.
    """
    partitions, offsets = [p for p, _ in places], [o for _, o in places]
    values = {"dataset": dataset_id, "partitions": partitions, "offsets": offsets}
    row = connection.execute(FORGET, values).fetchone()
    return 0 if row is None else int(row[0])


def _newest_of(frames: Iterable[bytes]) -> pa.Table:
    """The newest event per key in frames."""
    tables = [unpacked(content) for content in frames]
    if len(tables) == 1:
        return tables[0]
    every = pa.concat_tables(tables).combine_chunks()
    keys = every.column("key").combine_chunks()
    return every.take(_newest(keys, every.column("at").to_numpy(), every.column("position").to_numpy()))


def _newest(keys: pa.Array, at: Numbers, place: Numbers) -> Indexes:
    """Indexes of the newest of each key."""
    codes = pc.dictionary_encode(keys).indices.to_numpy()
    order = np.lexsort((place, at, codes))
    sorted_codes = codes[order]
    last = np.ones(len(sorted_codes), np.bool_)
    last[:-1] = sorted_codes[1:] != sorted_codes[:-1]
    return order[last]


def _text(dataset: Dataset, row: Mapping[str, Any]) -> str | None:
    """The data of a row as JSON; None: it is too large."""
    document = dataset.documents.get(row["schema_version"], dataset.document)
    text = json_values.written(event_data(dataset, row, document))
    return text.decode() if len(text) <= DATA_BYTES else None
