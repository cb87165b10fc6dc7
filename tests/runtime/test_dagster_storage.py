"""Dagster's storage keeps its connections, and gets over those that were lost."""

from pathlib import Path

import pytest
import sqlalchemy
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

from chaos.surroundings import superuser
from pulse_pipelines.runtime.storage import PooledStorage
from pulse_resources.local import dagster as local_dagster
from pulse_resources.settings import Settings

CONFIGURATION = Path(__file__).parents[2] / "dagster_home"


def test_an_instance_keeps_it_where_pulse_s_settings_say(
    stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in local_dagster.environment(stack).items():
        monkeypatch.setenv(name, value)
    with DagsterInstance.from_config(str(CONFIGURATION)) as instance:
        query = "SELECT current_database(), current_user"
        with instance.run_storage.connect() as connection:
            found = connection.exec_driver_sql(query).one()
    assert tuple(found) == (stack.postgres.dagster_database, "pulse_owner")


def test_connections_are_kept_and_replaced(stack: Settings) -> None:
    storage = PooledStorage(stack.postgres.dagster_url())

    def backend() -> int:
        with storage.run_storage.connect() as connection:
            return int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())

    first = backend()
    assert storage.run_storage.get_runs(RunsFilter(statuses=[DagsterRunStatus.STARTED])) == []
    assert storage.schedule_storage.all_instigator_state() == []
    assert backend() == first
    with superuser() as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", [first])
    assert storage.run_storage.get_runs() == []
    assert backend() != first


def test_the_names_of_all_tables_are_not_read_in_each_tick(stack: Settings) -> None:
    storage = PooledStorage(stack.postgres.dagster_url())
    storage.schedule_storage.get_instigator_state("origin", "selector")
    asked: list[str] = []
    with storage.run_storage.connect() as connection:
        sqlalchemy.event.listen(
            connection.engine, "before_cursor_execute", lambda *found: asked.append(found[2])
        )
    assert storage.schedule_storage.get_instigator_state("origin", "selector") is None
    assert storage.schedule_storage.get_ticks("origin", "selector") == []
    assert len(asked) == 2, asked
