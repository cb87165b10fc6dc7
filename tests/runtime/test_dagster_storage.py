"""Dagster's storage keeps its connections, and gets over those that were lost."""

from dagster import DagsterRunStatus, RunsFilter

from chaos.surroundings import superuser
from pulse_pipelines.runtime.storage import PooledStorage
from pulse_resources.settings import Settings


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
