"""Check `state_equals_table`: the state of a dataset of events, with its windows, is what its table gives."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import duckdb

from pulse_pipelines.monitoring.checks import windows
from pulse_pipelines.monitoring.checks.subject import CheckResult, Subject
from pulse_pipelines.monitoring.checks.windows import KeptWindows
from pulse_pipelines.query import duckdb_pool
from pulse_pipelines.tables.event_states import KEY_BYTES
from pulse_resources import iceberg, postgres, readable

SAMPLE = 1_000
"""Keys that are looked at, any others each time."""
STATE = """
SELECT latest_by, keys, built = marks AND left_out = 0 FROM event_states WHERE dataset_id = %s
"""
KEYS = """
SELECT key, at, partition, event_offset, event_id FROM event_state_keys
WHERE dataset_id = %s ORDER BY random() LIMIT %s
"""
# Of the newest event of a key its place, in the order by which it is the newest.
NEWEST = f"""
SELECT {{key}}::VARCHAR, epoch_us(timestamp), _kafka_partition, _offset, id FROM {duckdb_pool.SCAN}
WHERE {{key}}::VARCHAR IN (SELECT unnest(?::VARCHAR[]))
QUALIFY row_number() OVER (
    PARTITION BY {{key}} ORDER BY timestamp DESC, _kafka_partition DESC, _offset DESC) = 1
"""  # noqa: S608 - from constants
COUNT = f"""
SELECT count(DISTINCT {{key}}) FROM {duckdb_pool.SCAN} WHERE strlen({{key}}::VARCHAR) <= {KEY_BYTES}
"""  # noqa: S608


@dataclass(frozen=True)
class _Seen:
    """A state, a sample of it and the table, read at the same moment."""

    location: str
    latest_by: str = ""
    keys: int = 0
    complete: bool = False
    """Whether it should have every key that the table has."""
    sample: tuple[tuple[Any, ...], ...] = ()
    windows: KeptWindows | None = None


def state_equals_table(subject: Subject) -> CheckResult:
    """Compare a sample of keys, and of minutes of windows, and their number, with the table as a whole."""
    if subject.dataset.of_entities or subject.dataset.state is None or subject.scope.batch_id is not None:
        return CheckResult()
    look = partial(_look, subject)
    return readable.as_it_is(_compare, look(), look, lambda seen: seen.location)


def _look(subject: Subject) -> _Seen:
    tenant, dataset = subject.tenant, subject.dataset
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id, one_snapshot=True) as connection:
        location = iceberg.current_location(connection, (tenant.namespace, dataset.slug))
        row = connection.execute(STATE, [dataset.dataset_id]).fetchone()
        if row is None:  # it was dropped meanwhile
            return _Seen(location)
        sample = connection.execute(KEYS, [dataset.dataset_id, SAMPLE]).fetchall()
        kept = windows.look(connection, dataset.dataset_id)
    latest_by, keys, complete = row
    return _Seen(location, latest_by, keys, complete, tuple(sample), kept)


def _compare(seen: _Seen) -> CheckResult:
    if not seen.latest_by:
        return CheckResult()
    key = '"' + seen.latest_by.replace('"', '""') + '"'
    with duckdb_pool.connect(duckdb_pool.PROOFS) as connection:
        wanted = [each[0] for each in seen.sample]
        found = {row[0]: row for row in _rows(connection, NEWEST.format(key=key), [seen.location, wanted])}
        ((count,),) = _rows(connection, COUNT.format(key=key), [seen.location])
        kept = seen.windows
        found_wrong = windows.problems(connection, seen.location, key, kept) if kept else ()
    result = CheckResult({"keys": seen.keys}, list(found_wrong))
    wrong = [each[0] for each in seen.sample if found.get(each[0]) != each]
    if seen.complete and wrong:
        result.problems.append(
            f"of {len(seen.sample)} keys {len(wrong)} have another newest event in the table"
        )
    if seen.complete and count != seen.keys:
        result.problems.append(f"the state has {seen.keys} keys, and the table {count}")
    return result


def _rows(connection: duckdb.DuckDBPyConnection, query: str, values: list[Any]) -> list[Any]:
    return connection.execute(query, values).fetchall()
