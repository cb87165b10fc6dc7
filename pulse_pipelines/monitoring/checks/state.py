"""Check `state_equals_table`: the state of a dataset of events, with its windows, matches its table."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
import pyarrow as pa

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.monitoring.checks import windows
from pulse_pipelines.monitoring.checks.subject import CheckResult, Subject
from pulse_pipelines.monitoring.checks.windows import StoredWindows
from pulse_pipelines.query import duckdb_pool
from pulse_pipelines.states import state_keys
from pulse_pipelines.states.state_keys import KEY_BYTES
from pulse_pipelines.tables import arrow_columns, arrow_streams
from pulse_resources import iceberg, postgres
from pulse_resources.iceberg import readable

PLACE = ("at", "partition", "event_offset", "event_id")
SAMPLE = 1_000
"""Keys that are looked at, any others each time."""
STATE = """
SELECT latest_by, keys, built = marks AND left_out = 0,
    (SELECT count(*) FROM event_state_keys k WHERE k.dataset_id = s.dataset_id)
FROM event_states s WHERE dataset_id = %s
"""
KEYS = """
SELECT key, at, partition, event_offset, event_id, data FROM event_state_keys
WHERE dataset_id = %s ORDER BY random() LIMIT %s
"""
# The newest event of a key, in the order by which it is the newest.
NEWEST = f"""
SELECT * FROM {duckdb_pool.SCAN}
WHERE {{key}}::VARCHAR IN (SELECT unnest(?::VARCHAR[]))
QUALIFY row_number() OVER (
    PARTITION BY {{key}} ORDER BY timestamp DESC, _kafka_partition DESC, _offset DESC) = 1
"""  # noqa: S608 - from constants
COUNT = f"""
SELECT count(DISTINCT {{key}}) FROM {duckdb_pool.SCAN} WHERE strlen({{key}}::VARCHAR) <= {KEY_BYTES}
"""  # noqa: S608


@dataclass(frozen=True)
class _StateSnapshot:
    """A state, a sample of it and the table, read at the same moment."""

    location: str
    latest_by: str = ""
    keys: int = 0
    """Number of keys as the state counts them."""
    key_count: int = 0
    """Number of keys that are there."""
    complete: bool = False
    """Whether it should have every key that the table has."""
    sample: tuple[tuple[Any, ...], ...] = ()
    windows: StoredWindows | None = None


def state_equals_table(subject: Subject) -> CheckResult:
    """Compare a sample of keys, with their events' data, and of minutes of windows, and their number, with
    the table as a whole."""
    dataset = subject.dataset
    if dataset.of_entities or dataset.state is None or subject.scope.batch_id is not None:
        return CheckResult()
    read = partial(_read, subject)
    return readable.as_it_is(partial(_compare, dataset), read(), read, lambda snapshot: snapshot.location)


def _read(subject: Subject) -> _StateSnapshot:
    tenant, dataset = subject.tenant, subject.dataset
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id, one_snapshot=True) as connection:
        location = iceberg.current_location(connection, (tenant.namespace, dataset.slug))
        row = connection.execute(STATE, [dataset.dataset_id]).fetchone()
        if row is None:  # it was dropped meanwhile
            return _StateSnapshot(location)
        sample = connection.execute(KEYS, [dataset.dataset_id, SAMPLE]).fetchall()
        stored = windows.stored_windows(connection, dataset.dataset_id)
    latest_by, keys, complete, count = row
    return _StateSnapshot(location, latest_by, keys, count, complete, tuple(sample), stored)


def _compare(dataset: Dataset, snapshot: _StateSnapshot) -> CheckResult:
    if not snapshot.latest_by:
        return CheckResult()
    key = '"' + snapshot.latest_by.replace('"', '""') + '"'
    with duckdb_pool.connect(duckdb_pool.PROOFS) as connection:
        sampled = [key for key, *_ in snapshot.sample]
        rows = connection.execute(NEWEST.format(key=key), [snapshot.location, sampled]).to_arrow_table()
        newest = _newest(dataset, rows)
        ((count,),) = connection.execute(COUNT.format(key=key), [snapshot.location]).fetchall()
        stored = snapshot.windows
        differences = windows.problems(connection, snapshot.location, key, stored) if stored else ()
    result = CheckResult({"keys": snapshot.keys}, list(differences))
    wrong = different_data = 0
    for key, *place, data in snapshot.sample:
        event = newest.get(key)
        wrong += event is None or place != event[0]
        different_data += event is not None and place == event[0] and _decoded(data) != event[1]
    if snapshot.complete and wrong:
        result.problems.append(
            f"of {len(snapshot.sample)} keys {wrong} have another newest event in the table"
        )
    if different_data:
        result.problems.append(
            f"of {len(snapshot.sample)} keys {different_data} have other data than their event"
        )
    if snapshot.key_count != snapshot.keys:
        result.problems.append(f"the state counts {snapshot.keys} keys, and has {snapshot.key_count}")
    if snapshot.complete and count != snapshot.keys:
        result.problems.append(f"the state has {snapshot.keys} keys, and the table {count}")
    return result


def _newest(dataset: Dataset, rows: pa.Table) -> dict[str, tuple[list[Any], Any]]:
    """Place and data of each row, by its key, as a state keeps them."""
    schema = arrow_columns.arrow_schema(dataset.table_schema)
    frame = state_keys.frame(dataset, rows.select(schema.names).cast(schema))
    newest = arrow_streams.unpacked(frame.packed) if frame else state_keys.FRAME.empty_table()
    return {row["key"]: ([row[name] for name in PLACE], _decoded(row["data"])) for row in newest.to_pylist()}


def _decoded(data: str | None) -> Any:
    return None if data is None else orjson.loads(data)
