"""Job `upkeep`: one run carries out the tasks of many tables within its time budget."""

from collections import Counter
from collections.abc import Sequence

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from pulse_pipelines.defs.datasets.partitions import asset_key
from pulse_pipelines.defs.resources import Catalog, ObjectStore, Postgres
from pulse_pipelines.ingest import priority
from pulse_pipelines.maintenance.history import Done
from pulse_pipelines.maintenance.policy import needs
from pulse_pipelines.maintenance.run import run
from pulse_resources.errors import Terminal
from pulse_resources.settings import load_settings

SHOWN = 500
"""Tasks listed on a run's page; `pulse upkeep history` lists all."""
BAD = ("failed", "rolled_back")


class UpkeepConfig(dg.Config):
    tenant: str | None = Field(default=None, description="Slug of the tenant to maintain; by default all.")
    dataset: str | None = Field(default=None, description="Slug of the datasets to maintain; by default all.")
    recent: bool = Field(
        default=False, description="Consider only datasets with recent landings, as runs of the sensor do."
    )


@dg.op(
    description="Decide from the ledger what each table needs, then do it, the most urgent first: merge the "
    "small files of a day, sort a quiet day, rewrite manifests, expire snapshots, remove orphans, and what "
    "is beyond retention. Each is a commit of its own: a run that is killed or out of time continues "
    "with the next. A task that failed, or found a table rolled back, becomes an alert, is tried again "
    "later, and fails the run after the other tables had their turn. The output's table lists them with "
    "reasons.",
    tags={"kind": "iceberg"},
)
def run_maintenance(
    context: dg.OpExecutionContext,
    config: UpkeepConfig,
    pyspark: LazyPySparkResource,
    object_store: ObjectStore,
    catalog: Catalog,
    postgres: Postgres,
) -> None:
    priority.lower_for_good()
    everything = config.tenant is None and config.dataset is None  # a named one does not wait for its retry
    tasks = needs(config.tenant, config.dataset, recent=config.recent, patient=everything)
    done: list[Done] = []
    seconds = load_settings().upkeep.run_seconds
    for finished in run(lambda: pyspark.spark_session, tasks, run_id=context.run_id, seconds=seconds):
        done.append(finished)
        if finished.outcome in BAD:
            context.log.error("%s", finished)
        elif finished.outcome == "done" and finished.dataset:
            context.log_event(observation(finished))
    outcomes = Counter(finished.outcome for finished in done)
    remaining = len(tasks) - len(done)
    context.add_output_metadata({"wanted": len(tasks), "left": remaining, **outcomes, "tasks": table(done)})
    if bad := [finished for finished in done if finished.outcome in BAD]:
        raise Terminal(
            f"{len(bad)} task(s) of upkeep went wrong, the first: {bad[0]}",
            fix="The other tables had their turn; what failed is tried again by itself, after a while that "
            "doubles each time",
        )


def observation(done: Done) -> dg.AssetObservation:
    """Observation of a task on the page of the dataset's asset, or of its partition."""
    partition = None
    if done.day is not None:
        partition = dg.MultiPartitionKey({"day": str(done.day), "tenant": done.tenant})
    numbers = {f"{name}_before": value for name, value in done.before.items()}
    numbers |= {f"{name}_after": value for name, value in done.after.items()}
    return dg.AssetObservation(
        asset_key(done.dataset or ""),
        partition=partition,
        description=f"upkeep of {done.tenant}: {done.task} ({done.reason})",
        metadata={
            "upkeep": done.task,
            "tenant": done.tenant,
            **numbers,
            "seconds": done.seconds or 0.0,
            "snapshot_id": str(done.snapshot_id),
        },
        tags={"pulse/tenant": done.tenant},
    )


def table(done: Sequence[Done]) -> dg.TableMetadataValue:
    """Tasks of a run as a table for its page."""
    columns = ("tenant", "dataset", "day", "task", "why", "outcome", "before", "after", "seconds", "detail")
    records = [
        dg.TableRecord(
            dict(
                zip(
                    columns,
                    (
                        task.tenant,
                        task.dataset or "",
                        str(task.day or ""),
                        task.task,
                        task.reason,
                        task.outcome,
                        _text(task.before),
                        _text(task.after),
                        task.seconds or 0.0,
                        task.detail or "",
                    ),
                    strict=True,
                )
            )
        )
        for task in done[:SHOWN]
    ]
    kinds = {"seconds": "float"}
    schema = dg.TableSchema([dg.TableColumn(name, kinds.get(name, "string")) for name in columns])
    return dg.MetadataValue.table(records, schema)


def _text(numbers: dict[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in numbers.items())


@dg.job(
    description="Maintains tables: compaction, manifests, snapshot expiry, orphans, retention. Launched "
    "by the sensor `upkeep_needed` and the schedule `upkeep_daily`; by hand for one tenant or dataset "
    "(config). Never more than one at a time, and ingestion does not wait for it.",
    executor_def=dg.in_process_executor,
    tags={"pulse/job": "upkeep"},
)
def upkeep() -> None:
    run_maintenance()
