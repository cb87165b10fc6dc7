"""Work in a process that may be killed: plan a batch, run an attempt by Dagster's job, move a dataset."""

import os
import sys
import threading
import traceback
from collections.abc import Collection, Mapping
from uuid import UUID

import dagster as dg

from pulse_pipelines import pipes, registry
from pulse_pipelines.defs.ingest.attempt import BatchAttempt
from pulse_pipelines.defs.ingest.job import ingest
from pulse_pipelines.defs.ingest.sensor import run_config
from pulse_pipelines.defs.resources import services
from pulse_pipelines.domain.batch import plan
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest import plan as planning
from pulse_pipelines.maintenance import rewrite
from pulse_pipelines.moves import evolve
from pulse_pipelines.pipes import run as pipe_run
from pulse_pipelines.pipes.sinks.run import deliver
from pulse_pipelines.pipes.watch import watch_one
from pulse_resources import spark
from pulse_resources.settings import load_settings

EVERYTHING = 1_000_000


def plan_batch(tenants: Collection[UUID], environment: Mapping[str, str] | None = None) -> str | None:
    """Plan the tenants' waiting events, as the sensor does; returns the batch, None if nothing waits."""
    os.environ |= environment or {}
    status = planning.ingest_status(tenants)
    return planning.plan_batch(plan(status.backlogs, EVERYTHING), status) if status.backlogs else None


def ingest_job() -> dg.JobDefinition:
    """The job without Dagster's other definitions, whose loading takes long with hundreds of slugs."""
    resources = services() | {"attempt": BatchAttempt.configure_at_launch()}
    return dg.Definitions(jobs=[ingest], resources=resources).get_job_def(ingest.name)


def attempt(
    batch: str, number: int, *, raise_on_error: bool, log_level: str = "DEBUG"
) -> dg.ExecuteInProcessResult:
    """Run one attempt in this process."""
    return ingest_job().execute_in_process(
        run_config=run_config(batch, number) | {"loggers": {"console": {"config": {"log_level": log_level}}}},
        instance=_instance(),
        raise_on_error=raise_on_error,
    )


_THREAD = threading.local()


def _instance() -> dg.DagsterInstance:
    """An instance of this thread, in this process: making one takes a third of a small batch's time."""
    if getattr(_THREAD, "process", None) != os.getpid():  # a forked one has its parent's
        _THREAD.process, _THREAD.instance = os.getpid(), dg.DagsterInstance.ephemeral()
    instance: dg.DagsterInstance = _THREAD.instance
    return instance


def surrounded(environment: Mapping[str, str], log: str) -> None:
    """Give this forked process its caller's environment, and redirect its output to a file."""
    os.environ.clear()  # left by the first caller, as are the settings
    os.environ |= environment
    load_settings.cache_clear()
    with open(log, "ab", buffering=0) as file:  # noqa: PTH123 - by its number
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


def run_attempt(batch: str, number: int, log: str, environment: Mapping[str, str]) -> None:
    """Run one attempt; exits with 1 if it failed."""
    surrounded(environment, log)
    done = attempt(batch, number, raise_on_error=False)
    sys.stdout.flush()
    os._exit(0 if done.success else 1)  # Spark's client would delay the exit


def move(session: rewrite.Session, tenant: Tenant, slug: str, schema_uri: str) -> Dataset:
    """Move a dataset as a run's attempt does, but without a record and the table's lease."""
    dataset_id = registry.find_dataset(tenant, slug).dataset_id
    rewriter = rewrite.on_spark(session, tenant, dataset_id, slug, "a move")
    return evolve.carry_out(tenant, slug, dataset_id, schema_uri, rewriter=rewriter)


def of_pipe(action: str, tenant: Tenant, name: str, log: str, environment: Mapping[str, str]) -> None:
    """Run or watch a pipe; exits with 1 if it failed."""
    surrounded(environment, log)
    try:
        if action == "run":
            run_pipe(tenant, name)
        else:
            watch_one(pipes.find(tenant, name))
    except Exception:
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)
    os._exit(0)


def run_pipe(tenant: Tenant, name: str) -> None:
    """Run a pipe as its asset does."""
    if pipes.find(tenant, name).definition.delivers:
        deliver(tenant, name)
    else:
        pipe_run.run(spark.shared(), tenant, name, load_settings().spark.parallelism)
