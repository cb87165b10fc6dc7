"""Dagster's Postgres storage with pooled connections.

dagster-postgres opens a connection for each query, which costs both sides several milliseconds of a core, and
the daemon alone queries a dozen times a second. In each tick of a sensor it reads the names of all tables
several times, too, to see whether one is there that it has made itself. To find the latest execution of a
check it reads all, of which there is one for each batch.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy
from dagster import AssetCheckKey, AssetKey, DagsterInstance
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecord
from dagster._serdes import ConfigurableClassData
from dagster_postgres.storage import DagsterPostgresStorage

from pulse_resources.settings import load_settings

OPEN_CONNECTIONS, MAX_CONNECTIONS = 4, 50
"""Connections per process: those that stay open, and the maximum."""
# `id + 0`: the planner may take the primary key otherwise, and read all that is newer than what it looks for.
INDEXES = (
    "CREATE INDEX CONCURRENTLY IF NOT EXISTS pulse_check_executions"
    " ON asset_check_executions (asset_key, check_name, (id + 0))",
    "CREATE INDEX CONCURRENTLY IF NOT EXISTS pulse_failed_check_executions"
    " ON asset_check_executions (asset_key, check_name, id) WHERE execution_status = 'FAILED'",
)
LATEST = sqlalchemy.text("""
SELECT e.* FROM unnest(CAST(:assets AS text[]), CAST(:names AS text[])) AS of (asset_key, check_name)
CROSS JOIN LATERAL (
    SELECT * FROM asset_check_executions e
    WHERE e.asset_key = of.asset_key AND e.check_name = of.check_name ORDER BY e.id + 0 DESC LIMIT 1) e
""")
# The latest result of a check that runs still holds; a failure before the latest one needs no look.
FAILING = sqlalchemy.text("""
SELECT asset_key, check_name FROM (
    SELECT asset_key, check_name, max(id) AS id FROM asset_check_executions
    WHERE execution_status = 'FAILED' GROUP BY asset_key, check_name) failed
WHERE coalesce((
    SELECT max(later.id + 0) FROM asset_check_executions later
    WHERE later.asset_key = failed.asset_key AND later.check_name = failed.check_name
        AND later.execution_status = 'SUCCEEDED'), 0) < failed.id
ORDER BY asset_key, check_name
""")


@cache
def _engine(url: str) -> sqlalchemy.Engine:
    """One engine for all instances of a process: the code server opens an instance for each tick."""
    return sqlalchemy.create_engine(
        url,
        isolation_level="AUTOCOMMIT",
        pool_size=OPEN_CONNECTIONS,
        max_overflow=MAX_CONNECTIONS - OPEN_CONNECTIONS,
        pool_pre_ping=True,  # Postgres may have been restarted since
    )


class PooledStorage(DagsterPostgresStorage):
    """Run, event and schedule storage over one pool per process, at the address in Pulse's settings."""

    def __init__(self, postgres_url: str, inst_data: ConfigurableClassData | None = None) -> None:
        super().__init__(postgres_url, inst_data=inst_data)
        for storage in (self._run_storage, self._event_log_storage, self._schedule_storage):
            storage._engine = _engine(postgres_url)
        schedules: Any = self._schedule_storage
        schedules.has_instigators_table = schedules._has_instigators_table = _exists
        schedules.has_secondary_index_table = _exists
        schedules.has_built_index = cache(schedules.has_built_index)
        events: Any = self._event_log_storage
        events.get_latest_asset_check_execution_by_key = self._latest_checks

    def add_indexes(self) -> None:
        """Add indexes that Dagster's tables lack; idempotent. Beside writers it may take minutes."""
        with self.event_log_storage.index_connection() as connection:  # type: ignore[attr-defined]
            for statement in INDEXES:
                connection.exec_driver_sql(statement)

    def _latest_checks(
        self, check_keys: Sequence[AssetCheckKey], partition_filter: Any = None
    ) -> Mapping[AssetCheckKey, AssetCheckExecutionRecord]:
        """Dagster's `get_latest_asset_check_execution_by_key`, which reads a row for each check."""
        events: Any = self._event_log_storage
        if partition_filter is not None:
            latest_execution = type(events).get_latest_asset_check_execution_by_key
            return latest_execution(events, check_keys, partition_filter)  # type: ignore[no-any-return]
        keys = {(key.asset_key.to_string(), key.name): key for key in check_keys}
        values = {"assets": [asset for asset, _ in keys], "names": [name for _, name in keys]}
        with events.index_connection() as connection:
            rows = connection.execute(LATEST, values).mappings().all()
        latest = {keys[row["asset_key"], row["check_name"]]: row for row in rows}
        return {key: AssetCheckExecutionRecord.from_db_row(row, key=key) for key, row in latest.items()}

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Any) -> "PooledStorage":
        return cls(load_settings().postgres.dagster_url(), inst_data)


def failing_check_keys(instance: DagsterInstance) -> list[AssetCheckKey]:
    """Keys of the checks whose latest result is a failure, also of assets that are gone."""
    events: Any = instance.event_log_storage
    with events.index_connection() as connection:
        rows = connection.execute(FAILING).all()
    return [
        AssetCheckKey(key, name)
        for asset, name in rows
        if (key := AssetKey.from_db_string(asset)) is not None
    ]


def _exists(*_: object) -> bool:
    """Whether a table is there: they all are, once the storage has been opened."""
    return True
