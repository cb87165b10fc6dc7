"""Dagster's Postgres storage with pooled connections.

dagster-postgres opens a connection for each query, which costs both sides several milliseconds of a core, and
the daemon alone queries a dozen times a second. In each tick of a sensor it reads the names of all tables
several times, too, to see whether one is there that it has made itself.
"""

from functools import cache
from typing import Any

import sqlalchemy
from dagster._serdes import ConfigurableClassData
from dagster_postgres.storage import DagsterPostgresStorage

from pulse_resources.settings import load_settings

KEPT, AT_MOST = 4, 50
"""Connections per process: kept open, and at most."""


@cache
def _engine(url: str) -> sqlalchemy.Engine:
    """One engine for all instances of a process: the code server opens an instance for each tick."""
    return sqlalchemy.create_engine(
        url,
        isolation_level="AUTOCOMMIT",
        pool_size=KEPT,
        max_overflow=AT_MOST - KEPT,
        pool_pre_ping=True,  # Postgres may have been restarted since
    )


class PooledStorage(DagsterPostgresStorage):
    """Run, event and schedule storage over one pool per process, at the address in Pulse's settings."""

    def __init__(self, postgres_url: str, inst_data: ConfigurableClassData | None = None) -> None:
        super().__init__(postgres_url, inst_data=inst_data)
        for storage in (self._run_storage, self._event_log_storage, self._schedule_storage):
            storage._engine = _engine(postgres_url)
        schedules: Any = self._schedule_storage
        schedules.has_instigators_table = schedules._has_instigators_table = _is_there
        schedules.has_secondary_index_table = _is_there
        schedules.has_built_index = cache(schedules.has_built_index)

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Any) -> "PooledStorage":
        return cls(load_settings().postgres.dagster_url(), inst_data)


def _is_there(*_: object) -> bool:
    """Whether a table is there: they all are, once the storage has been opened."""
    return True
