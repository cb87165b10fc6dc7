"""Upkeep, beside everything else that goes on: what tables want, and that nothing is lost by giving it."""

from datetime import date

import pytest
from fix_ingest import Owner, event, ingest
from fix_lake import table
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.lake.reconcile import reconcile_tenant
from pulse_pipelines.lake.upkeep.history import Done
from pulse_pipelines.lake.upkeep.needs import Need, Task
from pulse_pipelines.lake.upkeep.run import run
from pulse_resources.settings import Settings, load_settings

DAY = date(2026, 11, 19)


@pytest.fixture(scope="module")
def spark(stack: Settings) -> SparkSession:
    return SparkSession.builder.remote(load_settings().spark.remote).getOrCreate()


def need(owner: Owner, task: Task, day: date | None = None) -> Need:
    dataset = table(owner)
    from uuid import UUID

    dataset_id = UUID(dataset.properties["pulse.dataset-id"])
    return Need(owner.tenant, dataset_id, "orders", task, "for the test", 1, day)


def do(spark: SparkSession, *wanted: Need) -> list[Done]:
    return list(run(lambda: spark, wanted, run_id="test", seconds=600))


def files(owner: Owner) -> int:
    return len(list(table(owner).scan().plan_files()))


def test_a_day_of_many_small_files_becomes_one(owner: Owner, spark: SparkSession) -> None:
    for number in range(3):
        owner.send(event(f"a{number}"), event(f"b{number}"))
        ingest(owner)
    before = owner.rows()
    assert files(owner) == 6
    (done,) = do(spark, need(owner, Task.MERGE, DAY))
    assert (done.outcome, done.before["files"], done.after["files"]) == ("done", 6, 1), done
    assert owner.rows() == before
    assert reconcile_tenant(owner.tenant).balanced
