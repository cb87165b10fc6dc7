"""One batch through the real job, in this process: how long each step took."""

from collections.abc import Iterable

import dagster as dg

from chaos import inside
from pulse_pipelines.domain.tenant import Tenant


def run_batch(tenants: Iterable[Tenant]) -> dict[str, float]:
    """Plan and run all that waits for the tenants; seconds by step.

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
