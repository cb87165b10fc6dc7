"""A run of the curated zone: compute and commit the due days, each dataset independently."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

from pyiceberg.table import Table
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.curated.commit import Curated, commit
from pulse_pipelines.curated.compute import TASK, Result, compute
from pulse_pipelines.curated.due import JOB, Due
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry import failed_work
from pulse_pipelines.registry.failed_work import Failed, Work
from pulse_pipelines.tables import live_table, orphan_files
from pulse_resources import iceberg, object_store, outages
from pulse_resources.iceberg import TableName
from pulse_resources.settings import load_settings

OVERLAP = 4
"""Datasets committed concurrently: a commit mostly waits for the object store."""
COMMITS_BETWEEN_SEARCHES = 50
"""Commits of a table between two searches for orphans."""
MIN_AGE = timedelta(days=1)


@dataclass(frozen=True)
class CurateResult:
    days: tuple[Curated, ...]
    failures: tuple[Failed, ...]
    """Failures that may be transient: their days stay due, and they are recorded in `failures`."""


def curate(spark: SparkSession, due: Sequence[Due]) -> CurateResult:
    """Compute and commit due days; a failure of one dataset does not affect others.

    Raises:
        Transient: the object store does not answer; days committed by then stay committed.
    """
    settings = load_settings().curated
    results, failed = compute(spark, due)
    days: list[Curated] = []
    with ThreadPoolExecutor(OVERLAP, thread_name_prefix="curate") as pool:
        for done, problem in pool.map(_commit_safely, results):
            days.extend(done)
            failed.extend([problem] if problem else [])
    failed_work.note(failed, first_s=settings.retry_seconds, most_s=settings.retry_max_seconds)
    return CurateResult(tuple(days), tuple(failed))


def _commit_safely(results: Sequence[Result]) -> tuple[list[Curated], Failed | None]:
    """Commit the results of one dataset; returns its committed days, and the failure if there was one."""
    done: list[Curated] = []
    try:
        done = commit(results)
        pinned = results[0].pinned
        for rollup, location in {(day.rollup, day.metadata_location) for day in done}:
            name = pinned.tenant.curated_table(pinned.dataset.slug, rollup)
            if location and is_search_due(name, location):
                remove_orphan_files(pinned.tenant, name)
    except Exception as error:  # of any kind: it must not fail the other datasets
        outages.check()
        tenant, dataset = results[0].pinned.tenant, results[0].pinned.dataset
        task = "orphans" if done else TASK
        return done, Failed.by(Work(JOB, tenant, task, dataset.dataset_id, dataset.slug), error)
    return done, None


def is_search_due(name: TableName, location: str) -> bool:
    """Whether the table, committed just now with this metadata, is due for a search."""
    snapshot = iceberg.load_table(name, location).current_snapshot()
    return snapshot is not None and (snapshot.sequence_number or 0) % COMMITS_BETWEEN_SEARCHES == 0


def remove_orphan_files(tenant: Tenant, name: TableName, min_age: timedelta = MIN_AGE) -> int:
    """Remove orphans older than `min_age`, by the object store's clock; returns their number.

    Raises:
        OSError: the object store failed; only orphans were removed.
        Terminal: the table is gone.
    """

    def load_table() -> Table:
        return iceberg.load_table(name, live_table.current_location(tenant.tenant_id, name))

    objects = object_store.aged(load_table().location(), min_age)
    # Earlier snapshots are not queried: of earlier metadata only the files in the log are kept.
    return orphan_files.remove(tenant, load_table, objects, by_log=False).objects
