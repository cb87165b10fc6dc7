"""Dagster's storage keeps its connections, and gets over those that were lost."""

import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetKey,
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    DagsterRunStatus,
    EventLogEntry,
    RunsFilter,
)

from chaos.surroundings import superuser
from pulse_pipelines.runtime.storage import FAILING, LATEST, PooledStorage
from pulse_resources.local import dagster as local_dagster
from pulse_resources.settings import Settings

CONFIGURATION = Path(__file__).parents[2] / "dagster_home"


def test_an_instance_uses_the_database_of_the_settings(
    stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in local_dagster.environment(stack).items():
        monkeypatch.setenv(name, value)
    with DagsterInstance.from_config(str(CONFIGURATION)) as instance:
        query = "SELECT current_database(), current_user"
        with instance.run_storage.connect() as connection:
            place = connection.exec_driver_sql(query).one()
    assert tuple(place) == (stack.postgres.dagster_database, "pulse_owner")


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
    statements: list[str] = []
    with storage.run_storage.connect() as connection:
        sqlalchemy.event.listen(
            connection.engine, "before_cursor_execute", lambda *event: statements.append(event[2])
        )
    assert storage.schedule_storage.get_instigator_state("origin", "selector") is None
    assert storage.schedule_storage.get_ticks("origin", "selector") == []
    assert len(statements) == 2, statements


HISTORY = """
INSERT INTO asset_check_executions (asset_key, check_name, run_id, execution_status)
SELECT %(asset)s, %(name)s, gen_random_uuid(), CASE WHEN i = 1 THEN 'FAILED' ELSE 'SUCCEEDED' END
FROM generate_series(1, %(batches)s) i
"""


def read(plan: Mapping[str, Any]) -> int:
    """Rows that the scans of a plan have read."""
    own = 0 if "Plans" in plan else plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    return sum((read(inner) for inner in plan.get("Plans", ())), start=own * plan["Actual Loops"])


def test_the_history_of_a_check_is_not_read_to_find_its_latest_execution(stack: Settings) -> None:
    storage = PooledStorage(stack.postgres.dagster_url())
    storage.add_indexes()
    storage.add_indexes()
    keys = [AssetCheckKey(AssetKey(["lake", uuid.uuid4().hex]), "reconciled") for _ in range(2)]
    values = {"assets": [key.asset_key.to_string() for key in keys], "names": [key.name for key in keys]}
    with storage.run_storage.connect() as connection:
        for key in keys:
            about = {"asset": key.asset_key.to_string(), "name": key.name, "batches": 5_000}
            connection.exec_driver_sql(HISTORY, about)
        connection.exec_driver_sql("ANALYZE asset_check_executions")
        for query, most in ((LATEST, 4), (FAILING, 20)):
            explained = sqlalchemy.text(f"EXPLAIN (ANALYZE, FORMAT JSON) {query.text}")
            of = values if query is LATEST else {}
            ((plans,),) = connection.execute(explained, of).all()
            assert read(plans[0]["Plan"]) <= most, plans
        connection.exec_driver_sql(
            "DELETE FROM asset_check_executions WHERE asset_key = ANY(%(assets)s)",
            {"assets": values["assets"]},
        )


def test_the_latest_checks_are_those_that_dagster_finds(stack: Settings) -> None:
    storage = PooledStorage(stack.postgres.dagster_url())
    keys = [AssetCheckKey(AssetKey(["lake", uuid.uuid4().hex]), name) for name in ("one", "other")]
    with DagsterInstance.ephemeral() as instance:
        for events in (instance.event_log_storage, storage.event_log_storage):
            for passed in (False, True):
                evaluation = AssetCheckEvaluation(
                    asset_key=keys[0].asset_key, check_name="one", passed=passed
                )
                events.store_event(entry(evaluation))
        latest = storage.event_log_storage.get_latest_asset_check_execution_by_key(keys)
        expected = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    assert {key: record.status for key, record in latest.items()} == {
        key: record.status for key, record in expected.items()
    }
    assert latest[keys[0]].evaluation == expected[keys[0]].evaluation
    assert storage.event_log_storage.get_latest_asset_check_execution_by_key([]) == {}


def entry(evaluation: AssetCheckEvaluation) -> EventLogEntry:
    event = DagsterEvent(DagsterEventType.ASSET_CHECK_EVALUATION.value, "job", event_specific_data=evaluation)
    return EventLogEntry(
        error_info=None, level=20, user_message="", run_id="", timestamp=time.time(), dagster_event=event
    )
