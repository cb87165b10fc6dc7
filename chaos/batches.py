"""Batches run by the Dagster job, each attempt in a process of its own that may be killed.

The processes are forked from one that has imported everything, so that attempts begin at once.
"""

import multiprocessing
import os
import signal
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import orjson

from chaos import inside, states
from chaos.load import SCHEMAS
from chaos.waiting import PATIENCE_S, wait
from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest import attempts, dead_letter_topic
from pulse_pipelines.ingest.attempts import OpenBatch
from pulse_resources import kafka
from pulse_resources.process.faults import VARIABLE
from pulse_resources.settings import load_settings

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["chaos.inside", "chaos.operators.commands"])
ENDLESS_ATTEMPTS = {"INGEST__MAX_ATTEMPTS": 100_000, "INGEST__RETRY_BACKOFF_SECONDS": 0}
"""A batch never gets stuck or waits: the harness kills attempts far more often than the defaults allow."""
PLANNING = ("plan.before_commit", "plan.after_commit")
STEPS = (
    "drain.before_fetch",
    "drain.before_conform",
    "drain.after_conform",
    "files.before_put",
    "files.after_put",
    "after.drain_and_conform",
    "gate.before_lookup",
    "gate.after_lookup",
    "after.dedup_gate",
    "land.before_stage",
    "land.after_stage",
    "after.land",
    "settle.before_swap",
    "settle.after_swap",
    "settle.before_claim",
    "claims.before_add",
    "claims.after_add",
    "settle.before_advance",
    "settle.after_advance",
    "settle.before_commit",
    "settle.after_commit",
    "after.settle",
    "route_dead_letters.before_publish",
    "route_dead_letters.before_mark",
    "route_dead_letters.after_mark",
    "after.route_dead_letters",
)
"""Fail points of a planner, and of an attempt from start to end."""


@dataclass(frozen=True)
class Blow:
    """Fault for an attempt: SIGKILL at a fail point, or after some seconds."""

    point: str | None = None
    after_s: float | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the affected process."""
        return {VARIABLE: self.point} if self.point else {}


def make_tenant(*, with_states: bool = True) -> Tenant:
    """Make a tenant with the datasets of the load, and a state with windows of each."""
    tenant = registry.create_tenant(f"c{uuid.uuid4().hex[:12]}")
    for slug, schema in SCHEMAS.items():
        published = registry.publish_schema(tenant, slug, orjson.dumps(schema).decode())
        registry.create_dataset(tenant, slug, published.schema_uri)
    if with_states:
        states.declare(tenant)
    return tenant


def log() -> Path:
    """Log file of the attempts."""
    return load_settings().home / "attempts.log"


def fork(work: Callable[..., object], arguments: tuple[object, ...]) -> BaseProcess:
    """Run a function in a forked process."""
    process = _FORKS.Process(target=work, args=arguments)
    process.start()
    return process


def start(batch: str, number: int, **environment: str) -> BaseProcess:
    """Start an attempt, with additional environment variables."""
    return fork(inside.run_attempt, (batch, number, str(log()), dict(os.environ) | environment))


def plan(tenants: Iterable[Tenant], blow: Blow | None = None) -> OpenBatch:
    """Plan the waiting events of the tenants, even if a planner is killed.

    Args:
        tenants: tenants whose topics are planned.
        blow: fail point at which the first planner is killed.

    Raises:
        AssertionError: nothing is waiting, or a planner did not end as expected.
    """
    tenant_ids = [tenant.tenant_id for tenant in tenants]
    before = {batch.batch_id for batch in attempts.open_batches()}
    while True:
        environment = dict(os.environ) | (blow.environment if blow else {})
        planner = fork(inside.plan_batch, (tenant_ids, environment))
        planner.join(PATIENCE_S)
        killed = planner.exitcode == -signal.SIGKILL
        assert killed == bool(blow), f"the planner under {blow} ended with {planner.exitcode}"
        planned = [batch for batch in attempts.open_batches() if batch.batch_id not in before]
        if planned:
            return planned[0]
        assert blow, "the planner finds no events"
        blow = None  # no fault for the next one


def strike(batch: OpenBatch, blow: Blow) -> bool:
    """Run one attempt under a fault; True if it was killed, False if it had finished."""
    process = start(batch.batch_id, batch.attempt, **blow.environment)
    process.join(PATIENCE_S if blow.after_s is None else blow.after_s)
    if process.is_alive():
        process.kill()
    process.join(PATIENCE_S)
    return process.exitcode == -signal.SIGKILL


def finish(batch: OpenBatch, remaining_attempts: int = 3) -> None:
    """Run attempts until a batch is settled.

    Raises:
        AssertionError: attempts failed repeatedly without a fault.
    """
    while (now := current(batch.batch_id)) is not None:
        assert remaining_attempts, f"batch {batch.batch_id} does not settle: {now.last_error}; see {log()}"
        remaining_attempts -= 1
        process = start(now.batch_id, now.attempt)
        process.join(PATIENCE_S)
        assert process.exitcode is not None, f"batch {batch.batch_id} hangs; see {log()}"


def current(batch: str) -> OpenBatch | None:
    """The batch after giving up a dead attempt, as the sensor does; None: it is settled."""
    batch_now = _open_batch(batch)
    if batch_now and batch_now.state == "running":
        # The server may notice a lost client with a delay.
        wait(lambda: not attempts.is_leased(batch), f"the lease on {batch} outlives its process")
        if (batch_now := _open_batch(batch)) and batch_now.state == "running":
            attempts.next_attempt(batch_now.batch_id, batch_now.attempt, "the run died", is_cause=False)
            batch_now = _open_batch(batch)
    return batch_now


def _open_batch(batch: str) -> OpenBatch | None:
    return next((b for b in attempts.open_batches() if b.batch_id == batch), None)


def publish_overdue() -> None:
    """Publish dead letters that runs left behind, as the sensor `dead_letter_sweep` does."""
    for tenant in dead_letter_topic.overdue(0):
        dead_letter_topic.publish_tenant(kafka.producer(), tenant)
