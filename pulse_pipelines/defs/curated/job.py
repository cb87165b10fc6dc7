"""The job `curate`: one run computes every day that is due, of all tenants and datasets."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from pulse_pipelines.curated import rollups
from pulse_pipelines.curated.commit import Curated
from pulse_pipelines.curated.due import due_days
from pulse_pipelines.curated.run import curate as curate_days
from pulse_pipelines.curated.sqlfile import TeamRollup
from pulse_pipelines.defs.curated.assets import COMPUTED, POOL, curated_key, described
from pulse_pipelines.defs.datasets.report import log_together
from pulse_pipelines.defs.resources import Catalog, Postgres
from pulse_pipelines.ingest import priority
from pulse_resources.errors import Transient
from pulse_resources.settings import load_settings

SHOWN = 50
"""Problems that a run or a check lists, at most."""


class CurateConfig(dg.Config):
    since: str | None = Field(
        default=None,
        description="Consider only days that changed after this moment (ISO 8601), as the sensor does; by "
        "default every day with events.",
    )


@dg.op(
    name="compute_what_is_due",  # runs are launched with a configuration by this name
    description="Compute every rollup of every day that changed since it was computed: one Spark statement "
    "per rollup for many tenants, from tables pinned to a snapshot; then, per dataset, one transaction for "
    "its curated tables and the summaries that are served. A failure for one tenant becomes an alert, is "
    "tried again later, and fails the run after everything else is done. A team's file that cannot be "
    "computed fails only the check of its asset.",
    tags={"kind": "pyspark"},
    pool=POOL,
)
def compute_due_days(
    context: dg.OpExecutionContext,
    config: CurateConfig,
    pyspark: LazyPySparkResource,
    catalog: Catalog,
    postgres: Postgres,
) -> None:
    priority.lower_for_good()
    team = rollups.team_rollups()
    since = datetime.fromisoformat(config.since) if config.since else datetime.min.replace(tzinfo=UTC)
    waiting = due_days(team, since).days
    ready = [day for day in waiting if day.ready][: load_settings().curated.days_per_run]
    done = curate_days(pyspark.spark_session, ready)
    _report(context, done.days)
    failed = [str(failure) for failure in done.failures]
    problems = [*unusable(team), *(day.error for day in done.days if day.error)]
    for problem in problems[:SHOWN]:
        context.log.error("%s", problem)
    context.add_output_metadata(
        {
            "days": len(ready),
            "left": len(waiting) - len(ready),
            "computed": sum(day.error is None for day in done.days),
            "problems": dg.MetadataValue.md(_list(problems) or "none"),
            "failures": dg.MetadataValue.md(_list(failed) or "none"),
        }
    )
    if failed:
        raise Transient(
            f"{len(failed)} failure(s), all else was computed; the first: {failed[0]}",
            fix="What failed is tried again by itself, after a while that doubles each time",
        )


def unusable(team: Iterable[TeamRollup]) -> list[str]:
    """Errors of rollup files without a declared owner: they have no asset to show them."""
    return [f"{rollup.source}: {rollup.problem}" for rollup in team if rollup.problem and not rollup.dataset]


def _report(context: dg.OpExecutionContext, days: Sequence[Curated]) -> None:
    of_asset: dict[dg.AssetKey, list[Curated]] = defaultdict(list)
    for day in days:
        of_asset[curated_key(day.slug, day.rollup)].append(day)
    for key, asset_days in of_asset.items():
        log_together(context, [_materialization(key, day) for day in asset_days if day.error is None])
        problems = [day.error for day in asset_days if day.error]
        metadata: dict[str, object] = {"days": len(asset_days), "failed": len(problems)}
        if problems:
            metadata["problems"] = dg.MetadataValue.md(_list(problems))
        evaluation = dg.AssetCheckEvaluation(
            check_name=COMPUTED,
            asset_key=key,
            passed=not problems,
            severity=dg.AssetCheckSeverity.ERROR,
            metadata=metadata,  # type: ignore[arg-type]
            description=problems[0] if problems else None,
        )
        context.log_event(evaluation)  # type: ignore[arg-type] # any user event is taken


def _materialization(key: dg.AssetKey, day: Curated) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(
        key,
        partition=dg.MultiPartitionKey({"day": str(day.day), "tenant": day.tenant}),
        metadata=described(day),
        tags={"pulse/tenant": day.tenant},
    )


def _list(problems: Sequence[str]) -> str:
    return "\n".join(f"- {problem}" for problem in problems[:SHOWN])


@dg.job(
    description="Computes the curated zone: summaries and Iceberg tables of every day that changed. Launched "
    "by the sensor `curated_due`; by hand without config to look at everything that ever landed.",
    executor_def=dg.in_process_executor,
    tags={"pulse/job": "curate"},
)
def curate() -> None:
    compute_due_days()
