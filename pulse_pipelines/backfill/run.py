"""A backfill from end to end: plan, rebuild, compare with the ledger, replace."""

import logging
import time
from dataclasses import dataclass
from datetime import date

import psycopg
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines import registry
from pulse_pipelines.backfill.plan import DayPlan, plan_day
from pulse_pipelines.backfill.rebuild import Rebuilt, rebuild
from pulse_pipelines.backfill.replace import Overtaken, replace
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.states import window_build
from pulse_pipelines.tables import leases, parquet_files
from pulse_resources.errors import NotFound, PulseError, Terminal, Transient, UserError
from pulse_resources.process.faults import fail_point

_log = logging.getLogger("pulse.backfill")
LEASE_WAIT_S = 600.0
"""Seconds that a backfill waits for another rewrite of its table to end."""
MAX_TRIES = 5


@dataclass(frozen=True)
class Backfilled:
    """The result of a backfill of one day."""

    backfill_id: str
    tenant: str
    dataset: str
    day: date
    schema_version: int
    rows: int
    """Rows of the day that were rebuilt; rows that landed meanwhile are not counted."""
    dead_letters_landed: int
    """Rows among them that were dead letters until now."""
    other_versions: int
    """Rows that are invalid by the version, and follow the version by which they landed."""
    files_before: int
    files_after: int
    bytes: int
    snapshot_id: int | None
    """None: the day had no rows, and nothing was committed."""
    metadata_location: str | None
    seconds: float


def choose_version(dataset: Dataset, version: int | None) -> int:
    """The requested version; None: the current one.

    Raises:
        NotFound: the dataset never followed it.
    """
    if version is not None and version not in dataset.documents:
        followed = ", ".join(str(number) for number in sorted(dataset.documents))
        raise NotFound(
            f"the dataset never followed version {version} of its schema",
            fix=f"It followed: {followed}",
            dataset=dataset.slug,
        )
    return version or dataset.schema_version


def backfill(
    spark: SparkSession,
    tenant: Tenant,
    slug: str,
    day: date,
    *,
    version: int | None = None,
    parallelism: int,
    run_id: str | None = None,
) -> Backfilled:
    """Rebuild a tenant's day from the raw zone and replace it in one commit.

    Every event that landed in the day lands again, as the same row; dead letters of the day that are valid
    now land for the first time. Rows ingested meanwhile stay. Running it again gives the same rows.

    Args:
        version: of the schema, for events that name none; the current one if not given.
        parallelism: Spark tasks to spread it over.
        run_id: of the Dagster run, if it is one.

    Raises:
        NotFound: the tenant has no such dataset, or it never followed the version.
        UserError: it is a dataset of entities.
        Terminal: the raw zone does not give what landed, or the table is gone; nothing was changed.
        Transient: other writers kept committing first; nothing was changed.
        OSError, psycopg.Error, PySparkException: a service failed; nothing was changed.
    """
    dataset = registry.find_dataset(tenant, slug)
    if dataset.of_entities:
        raise UserError(
            "a log of entities cannot be rebuilt from the raw zone: readers continue from its positions",
            fix="Send the entities again: unchanged ones add no version",
            tenant=tenant.slug,
            dataset=slug,
        )
    choose_version(dataset, version)
    done = _backfilled(spark, tenant, dataset, day, version, parallelism, run_id)
    try:
        window_build.build(tenant, slug)
    except (PulseError, OSError, psycopg.Error):  # the day is committed; upkeep builds them
        _log.exception("the windows of %s of tenant %s are not built yet", slug, tenant.slug)
    return done


def _backfilled(
    spark: SparkSession,
    tenant: Tenant,
    dataset: Dataset,
    day: date,
    version: int | None,
    parallelism: int,
    run_id: str | None,
) -> Backfilled:
    began = time.monotonic()
    with leases.rewriting(dataset.dataset_id, wait_seconds=LEASE_WAIT_S):
        for _ in range(MAX_TRIES):
            plan = plan_day(tenant, dataset.slug, day)
            chosen = choose_version(plan.dataset, version)
            backfill_id = f"backfill-{parquet_files.token()}"
            rebuilt = rebuild(spark, plan, backfill_id, chosen, parallelism)
            _compare(plan, rebuilt)
            fail_point("backfill.rebuilt")
            try:
                return _replace(plan, rebuilt, backfill_id, chosen, run_id, began)
            except Overtaken:
                continue
    raise Transient(
        "other writers keep changing the day",
        fix="Nothing was changed: try again",
        tenant=tenant.slug,
        dataset=dataset.slug,
        day=day,
    )


def _replace(
    plan: DayPlan, rebuilt: Rebuilt, backfill_id: str, version: int, run_id: str | None, began: float
) -> Backfilled:
    done, added = None, rebuilt.files
    if plan.files or rebuilt.files:
        done, added = replace(plan, rebuilt, backfill_id, version, run_id)
    return Backfilled(
        backfill_id=backfill_id,
        tenant=plan.tenant.slug,
        dataset=plan.dataset.slug,
        day=plan.day,
        schema_version=version,
        rows=rebuilt.rows + len(rebuilt.landing),
        dead_letters_landed=len(rebuilt.landing),
        other_versions=rebuilt.other_versions,
        files_before=len(plan.files),
        files_after=len(added),
        bytes=sum(file.bytes for file in added),
        snapshot_id=done.snapshot_id if done else None,
        metadata_location=done.new if done else None,
        seconds=time.monotonic() - began,
    )


def _compare(plan: DayPlan, rebuilt: Rebuilt) -> None:
    """Raise Terminal unless the rebuild gave exactly the rows that landed."""
    where = {"tenant": plan.tenant.slug, "dataset": plan.dataset.slug, "day": plan.day}
    if rebuilt.refused:
        raise Terminal(
            f"landed events no longer match any version of the schema: {'; '.join(rebuilt.refused)}",
            fix="The day was not changed; compare these events in the raw zone with the table's rows",
            **where,
        )
    if rebuilt.rows != plan.rows:
        raise Terminal(
            f"the raw zone gives {rebuilt.rows:,} rows, and {plan.rows:,} landed",
            fix="The day was not changed. Retention may have removed raw objects of the day; "
            "`pulse reconcile` shows what the table holds",
            **where,
        )
