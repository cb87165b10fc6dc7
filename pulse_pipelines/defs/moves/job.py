"""Job `move`: one attempt at a dataset's move to a newer schema."""

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from pulse_pipelines import registry
from pulse_pipelines.defs.resources import Catalog, ObjectStore, Postgres
from pulse_pipelines.ingest import priority
from pulse_pipelines.moves import MoveState
from pulse_pipelines.moves.run import attempt


class MoveConfig(dg.Config):
    tenant: str = Field(description="Slug of the tenant.")
    move_id: str
    attempt: int = Field(description="Number of the attempt, from 1.")


@dg.op(
    description="Rewrite the data files with a column that the newer schema replaces, several at a time "
    "in Spark tasks, then move the dataset and its table in one commit. Ingestion continues: files that "
    "land meanwhile are rewritten before the commit. If the dataset was deleted or has moved on, the run "
    "succeeds, and the move has failed with a reason.",
    tags={"kind": "iceberg"},
)
def move_dataset(
    context: dg.OpExecutionContext,
    config: MoveConfig,
    pyspark: LazyPySparkResource,
    object_store: ObjectStore,
    catalog: Catalog,
    postgres: Postgres,
) -> None:
    priority.lower_for_good()
    move = attempt(
        lambda: pyspark.spark_session,
        registry.find_tenant(config.tenant),
        config.move_id,
        config.attempt,
        run_id=context.run_id,
        progress=lambda written, total: context.log.info("%s of %s files are written", written, total),
    )
    if move.state == MoveState.FAILED:
        context.log.warning("nothing was moved: %s", move.error)
    context.add_output_metadata(
        {
            "dataset": move.slug,
            "from": move.from_uri,
            "to": move.schema_uri,
            "state": move.state,
            "files": move.files_done,
        }
    )


@dg.job(
    description="Moves a dataset to a newer schema by rewriting data files. The sensor `dataset_moves` "
    "launches it for each requested move (`pulse dataset move` or the HTTP API), one per tenant at a "
    "time. A run that dies or fails temporarily is followed by another attempt. The dataset is unchanged "
    "until the one commit at the end.",
    executor_def=dg.in_process_executor,
    tags={"pulse/job": "move"},
)
def move() -> None:
    move_dataset()
