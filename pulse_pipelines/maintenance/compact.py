"""Compaction by Spark's Iceberg procedures: one day of one table per statement, each a commit of its own.

A statement that dies leaves the table either unchanged or rewritten; the next run decides again. Ingestion
never waits for a compaction: the writer that commits first wins, and the other one commits on top of it.
"""

from datetime import date
from typing import Any

from pyiceberg.table import Table
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.maintenance import ancestry, state
from pulse_pipelines.maintenance.history import Done, Overtaken
from pulse_pipelines.maintenance.policy import MB
from pulse_resources import iceberg
from pulse_resources.process.faults import fail_point
from pulse_resources.settings import UpkeepSettings, load_settings

# A procedure takes literals only: Pulse's own names, days and numbers are filled in. A day ends at its last
# microsecond rather than before the next day, since the last day that a table can hold has no next one.
REFRESH = "REFRESH TABLE {catalog}.`{namespace}`.`{table}`"
REWRITE = """
CALL {catalog}.system.rewrite_data_files(
    table => '`{namespace}`.`{table}`', {strategy},
    where => 'timestamp >= TIMESTAMP ''{day} 00:00:00 UTC''
        AND timestamp <= TIMESTAMP ''{day} 23:59:59.999999 UTC''',
    options => map({options}))
"""
MANIFESTS = """
CALL {catalog}.system.rewrite_manifests(table => '`{namespace}`.`{table}`', use_caching => false)
"""
MERGE = "strategy => 'binpack'"
SORT = "strategy => 'sort', sort_order => 'timestamp ASC NULLS LAST'"
CONFLICTS = (
    "org.apache.iceberg.exceptions.ValidationException",
    "org.apache.iceberg.exceptions.CommitFailedException",
)
PART_COMMITS = 10
"""Maximum number of commits for a day that is rewritten in parts."""


def merge(spark: SparkSession, tenant: Tenant, dataset: Dataset, day: date, done: Done) -> None:
    """L1: merge the small files of a day into few.

    Raises:
        RolledBack: a commit of another writer was lost.
        PySparkException: the statement failed; the table is as it was.
    """
    settings = load_settings().upkeep
    options = {
        "target-file-size-bytes": settings.merge_target_mb * MB,
        "min-file-size-bytes": settings.merged_mb * MB,
        "max-file-size-bytes": 2 * settings.merge_target_mb * MB,
        "min-input-files": 2,
    }
    _rewrite(spark, tenant, dataset, day, done, level=1, strategy=MERGE, options=options)


def sort(spark: SparkSession, tenant: Tenant, dataset: Dataset, day: date, done: Done) -> None:
    """L2: write a quiet day as few large files, sorted by timestamp.

    Raises:
        as `merge`.
    """
    settings = load_settings().upkeep
    options = {
        "rewrite-all": "true",
        "target-file-size-bytes": settings.target_mb * MB,
        "max-file-size-bytes": settings.target_mb * MB * 9 // 5,
    }
    _rewrite(spark, tenant, dataset, day, done, level=2, strategy=SORT, options=options)


def _rewrite(
    spark: SparkSession,
    tenant: Tenant,
    dataset: Dataset,
    day: date,
    done: Done,
    *,
    level: int,
    strategy: str,
    options: dict[str, Any],
) -> None:
    before = state.of_day(tenant, dataset, day)
    done.before = _numbers(before)
    large = level == 2 and before.bytes >= load_settings().upkeep.sort_single_mb * MB
    if len(before.files) > 1 or large:
        words = {"strategy": strategy, "day": day}
        words["options"] = _options(options | _bounds(before.bytes, load_settings().upkeep))
        _call(spark, tenant, dataset, REWRITE, words, before.table)
    after = state.of_day(tenant, dataset, day)
    done.after = _numbers(after)
    done.snapshot_id = after.table.metadata.current_snapshot_id
    state.save_day(tenant, dataset, day, level, after)


def rewrite_manifests(spark: SparkSession, tenant: Tenant, dataset: Dataset, done: Done) -> None:
    """Rewrite the manifests of the current snapshot into few, grouped by day.

    Raises:
        as `merge`.
    """
    before = ancestry.verified(tenant, dataset)
    done.before = {"manifests": _manifests(before)}
    after = _call(spark, tenant, dataset, MANIFESTS, {}, before)
    done.after = {"manifests": _manifests(after)}
    done.snapshot_id = after.metadata.current_snapshot_id


def _bounds(size: int, settings: UpkeepSettings) -> dict[str, Any]:
    """Options that rewrite one file group at a time, to leave a core free; several groups commit in parts."""
    group = settings.group_mb * MB
    parts = -(-size // group)
    bounds: dict[str, Any] = {"max-concurrent-file-group-rewrites": 1, "max-file-group-size-bytes": group}
    if parts > 1:
        bounds |= {"partial-progress.enabled": "true"}
        bounds |= {"partial-progress.max-commits": min(parts, PART_COMMITS)}
    return bounds


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"'{name}', '{value}'" for name, value in options.items())


def _call(
    spark: SparkSession,
    tenant: Tenant,
    dataset: Dataset,
    statement: str,
    words: dict[str, Any],
    before: Table,
) -> Table:
    """Run a procedure, then verify the table's ancestry.

    Raises:
        Overtaken: another writer's commit removed the files that were read.
    """
    names = {"catalog": iceberg.CATALOG, "namespace": tenant.namespace, "table": dataset.slug}
    with_tag = tag(dataset)
    spark.addTag(with_tag)
    try:
        spark.sql(REFRESH.format(**names)).collect()  # Spark may have cached older metadata
        spark.sql(statement.format(**names, **words)).collect()
    except PySparkException as error:
        if any(conflict in str(error) for conflict in CONFLICTS):
            raise Overtaken(
                "another writer changed the table meanwhile",
                fix="The next run of upkeep looks again",
                tenant=tenant.slug,
                dataset=dataset.slug,
            ) from error
        raise
    finally:
        spark.removeTag(with_tag)
    fail_point("upkeep.after_spark")
    return ancestry.verified(tenant, dataset, before.metadata.current_snapshot_id)


def tag(dataset: Dataset) -> str:
    """Spark tag of all statements on a dataset's table, by which those of a dead run are cancelled."""
    return f"pulse-upkeep-{dataset.dataset_id}"


def _numbers(day: state.DayFiles) -> dict[str, int]:
    return {"files": len(day.files), "bytes": day.bytes, "rows": day.rows}


def _manifests(table: Table) -> int:
    snapshot = table.current_snapshot()
    return len(snapshot.manifests(table.io)) if snapshot else 0
