"""One batch through the real job, in this process: how long each step took."""

from collections.abc import Iterable

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from pulse_pipelines.defs.ingest.attempt import BatchAttempt
from pulse_pipelines.defs.ingest.job import ingest
from pulse_pipelines.defs.ingest.sensor import run_config
from pulse_pipelines.domain.batch import plan
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.stages import plan as planning
from pulse_resources.settings import load_settings


def run_batch(tenants: Iterable[Tenant]) -> dict[str, float]:
    """Plan and run all that waits for the tenants; seconds by step.

    Raises:
        dg.DagsterError, or what a step raised: the batch did not settle.
    """
    wanted = {tenant.tenant_id for tenant in tenants}
    survey = planning.survey()
    ranges = plan(
        [b for b in survey.backlogs if b.tenant_id in wanted], load_settings().ingest.batch_max_rows
    )
    batch = planning.plan_batch(ranges, survey)
    assert batch, "nothing waits"
    resources = {
        "attempt": BatchAttempt.configure_at_launch(),
        "pyspark": LazyPySparkResource(spark_config={"spark.remote": load_settings().spark.remote}),
    }
    job = dg.Definitions(jobs=[ingest], resources=resources).get_job_def(ingest.name)
    with dg.DagsterInstance.ephemeral() as instance:
        done = job.execute_in_process(run_config=run_config(batch, 1), instance=instance)
    return {
        event.step_key: event.step_success_data.duration_ms / 1000
        for event in done.all_events
        if event.event_type == dg.DagsterEventType.STEP_SUCCESS and event.step_key
    }
