"""Upkeep by hand: tasks of one tenant's `orders`, and settings as a test wants them."""

from datetime import date
from uuid import UUID

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.maintenance.history import Done
from pulse_pipelines.maintenance.policy import Need
from pulse_pipelines.maintenance.run import run
from pulse_pipelines.registry import find_dataset
from pulse_resources import iceberg, object_store, postgres
from support.forked import Forked, forked
from support.ingest import Owner
from support.lake import DAY, spark, table


def orders(owner: Owner) -> Dataset:
    return find_dataset(owner.tenant, "orders")


def need(owner: Owner, task: Task, day: date | None = None) -> Need:
    if task in (Task.RAW, Task.RETENTION, Task.TENANT_TABLES):
        return Need(owner.tenant, None, None, task, "for the test", 1)
    dataset_id = UUID(table(owner).properties[iceberg.DATASET_PROPERTY])
    day = DAY if task in (Task.MERGE, Task.SORT) and day is None else day
    return Need(owner.tenant, dataset_id, "orders", task, "for the test", 1, day)


def do(owner: Owner, *tasks: Task) -> list[Done]:
    """Carry tasks out in this process, on the day of `support.ingest.event` where they are about a day."""
    needs = [need(owner, task) for task in tasks]
    return list(run(spark, needs, run_id="test", seconds=600))


def done(owner: Owner, *tasks: Task) -> list[Done]:
    """As `do`, each of which must succeed."""
    results = do(owner, *tasks)
    assert [result.outcome for result in results] == ["done"] * len(tasks), results
    return results


def live_files(owner: Owner) -> list[str]:
    """Paths of the data files of the current table."""
    return sorted(task.file.file_path for task in table(owner).scan().plan_files())


def objects(prefix: str) -> set[str]:
    """Paths of everything under a prefix, as the store itself lists it."""
    from pyarrow import fs

    selector = fs.FileSelector(object_store.key(prefix), allow_not_found=True, recursive=True)
    infos = object_store.file_system().get_file_info(selector)
    return {f"s3://{info.path}" for info in infos if info.type is fs.FileType.File}


def log(owner: Owner) -> list[tuple[str, str]]:
    """Tasks and outcomes of the tenant's upkeep, oldest first."""
    query = "SELECT task, outcome FROM upkeep_log WHERE tenant_id = %s ORDER BY started_at"
    with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
        return connection.execute(query, [owner.tenant.tenant_id]).fetchall()


REWRITTEN = """
SELECT before->'files' FROM upkeep_log WHERE task = 'rewrite' AND tenant_id = %s ORDER BY started_at
"""


def rewritten(owner: Owner) -> list[int]:
    """How many files Spark was to write again for the tenant's moves and erasures, each time."""
    mine = owner.tenant.tenant_id
    with postgres.tenant_transaction("pulse_pipeline", mine) as connection:
        return [files for (files,) in connection.execute(REWRITTEN, [mine])]


def start(owner: Owner, *tasks: Task, **env: str) -> Forked:
    """Upkeep in a process of its own, to be killed or stopped."""
    return forked(do, owner, *tasks, **env)
