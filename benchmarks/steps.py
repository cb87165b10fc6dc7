"""Durations of a batch's steps, for a batch in this process and for the runs of a stack."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

import dagster as dg

from benchmarks.control_room import ask
from chaos import inside
from pulse_pipelines.defs.ingest.job import ingest
from pulse_pipelines.domain.tenant import Tenant

STEPS = """query Steps($filter: RunsFilter!) { runsOrError(filter: $filter) { ... on Runs { results {
    stepStats { stepKey startTime endTime } } } } }"""


def run_batch(tenants: Iterable[Tenant]) -> dict[str, float]:
    """Plan and run all waiting events of the tenants; returns seconds by step.

    Raises:
        dg.DagsterError, or what a step raised: the batch did not settle.
    """
    batch = inside.plan_batch({tenant.tenant_id for tenant in tenants})
    assert batch, "nothing waits"
    done = inside.attempt(batch, 1, raise_on_error=True, log_level="ERROR")
    return {
        event.step_key: event.step_success_data.duration_ms / 1000
        for event in done.all_events
        if event.event_type == dg.DagsterEventType.STEP_SUCCESS and event.step_key
    }


def of_runs(since: datetime, job: str = ingest.name) -> Counter[str]:
    """Seconds by step of all runs of a job since then, from Dagster's records."""
    chosen = {"pipelineName": job, "createdAfter": since.timestamp()}
    spent: Counter[str] = Counter()
    for run in ask(STEPS, {"filter": chosen})["runsOrError"]["results"]:
        for step in run["stepStats"]:
            spent[step["stepKey"]] += step["endTime"] - step["startTime"]
    return spent
