"""Operator commands and batches in a process that may be killed, and their answers.

The answer is written when the command has ended; a process without an answer was killed, or died.
"""

import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from chaos import inside
from chaos.operators.events import NAME, NOW
from pulse_pipelines import dead_letters, registry
from pulse_pipelines.backfill import backfill
from pulse_pipelines.curated import rollups
from pulse_pipelines.curated.due import due_days
from pulse_pipelines.curated.run import curate as compute
from pulse_pipelines.dead_letters import Filter, Result
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.domain.schemas.schema import SchemaUri
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure import record, run as erasure
from pulse_pipelines.ingest import attempts, data_loss
from pulse_pipelines.maintenance.policy import Need, needs
from pulse_pipelines.maintenance.run import run as run_upkeep
from pulse_pipelines.registry import quotas
from pulse_pipelines.tables import leases
from pulse_resources import spark
from pulse_resources.errors import Fenced, PulseError, Terminal, Transient, UserError
from pulse_resources.settings import load_settings

Answer = dict[str, Any]
UPKEEP_S = 120.0
LEASE_WAIT_S = 60.0
RETENTION = {
    "raw objects": {"PULSE_UPKEEP__RAW_DAYS": "0"},
    "claims": {"PULSE_UPKEEP__CLAIM_DAYS": "30"},
}
"""Retention settings by what they remove."""


def perform(
    action: str,
    tenants: Sequence[Tenant],
    arguments: Mapping[str, Any],
    environment: Mapping[str, str],
    log: str,
    answer: Path,
) -> None:
    """Run a command and answer how it ended: done, refused (may be repeated), terminal (may not), or failed
    in a way that no command should."""
    os.environ |= environment
    load_settings.cache_clear()  # imports before the fork may have read them
    with open(log, "ab", buffering=0) as file:  # noqa: PTH123 - by its number
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    try:
        outcome: Answer = {"ended": "done", "result": COMMANDS[action](tenants, **arguments)}
    except Exception as error:
        outcome = _ended(error)
    sys.stdout.flush()
    fresh = answer.with_suffix(".new")
    fresh.write_bytes(orjson.dumps(outcome, default=str, option=orjson.OPT_NON_STR_KEYS))
    fresh.replace(answer)
    os._exit(0)  # Spark's client would delay the exit


def _ended(error: Exception) -> Answer:
    cause = error.__cause__ if isinstance(error.__cause__, PulseError) else error  # Dagster wraps some
    failure = {"why": type(cause).__name__, "text": str(cause)[:1_000]}
    if isinstance(cause, UserError | Transient | Fenced):
        return {"ended": "refused", **failure}
    if isinstance(cause, Terminal):
        return {"ended": "terminal", **failure}
    traceback.print_exception(error)
    return {"ended": "failed", **failure}


def ingest(tenants: Sequence[Tenant]) -> Answer:
    """Do as the sensor and a run do: retry a batch whose run died, or plan a new one.

    Raises:
        Fenced: another process works on the batch.
    """
    slugs = {tenant.slug for tenant in tenants}
    open_batches = [b for b in attempts.open_batches() if slugs & attempts.waiting_in(b.batch_id).keys()]
    for batch in open_batches:
        if batch.state == "running" and not attempts.is_leased(batch.batch_id):
            attempts.next_attempt(batch.batch_id, batch.attempt, "the run died", is_cause=False)
    planned = inside.plan_batch({tenant.tenant_id for tenant in tenants})
    batch_ids = {batch.batch_id for batch in open_batches} | ({planned} if planned else set())
    count = 0
    for batch in attempts.open_batches():
        if batch.batch_id in batch_ids and batch.state == "planned":
            inside.attempt(batch.batch_id, batch.attempt, raise_on_error=True)
            count += 1
    return {"batches": count}


def replay(tenants: Sequence[Tenant], slug: str | None, version: int | None, limit: int | None) -> Answer:
    outcome = dead_letters.replay(tenants[0], Filter(slug), schema_version=version, limit=limit)
    return _counts(outcome)


def discard(tenants: Sequence[Tenant], slug: str | None, limit: int | None) -> Answer:
    return _counts(dead_letters.discard(tenants[0], Filter(slug), limit=limit))


def _counts(result: Result) -> Answer:
    return {outcome.value: count for outcome, count in result.counts.items()}


def rebuild(tenants: Sequence[Tenant], slug: str, day: int, version: int | None) -> Answer:
    """Rebuild a day by a backfill."""
    with spark.session() as session:
        date_of_day = (NOW - timedelta(days=day)).date()
        done = backfill(session, tenants[0], slug, date_of_day, version=version, parallelism=2)
    return {"rows": done.rows, "landed": done.dead_letters_landed}


def move(tenants: Sequence[Tenant], slug: str, version: int) -> Answer:
    dataset = registry.find_dataset(tenants[0], slug)
    alone = leases.rewriting(dataset.dataset_id, wait_seconds=LEASE_WAIT_S)
    with alone, spark.session_on_demand() as session:
        return {"at": inside.move(session, tenants[0], slug, uri(tenants[0], version)).schema_version}


def delete(tenants: Sequence[Tenant], slug: str) -> Answer:
    return {"dataset": registry.delete_dataset(tenants[0], slug).dataset_id}


def create(tenants: Sequence[Tenant], slug: str, version: int) -> Answer:
    return {"dataset": registry.create_dataset(tenants[0], slug, uri(tenants[0], version)).dataset_id}


def erase(tenants: Sequence[Tenant], slug: str, person: str) -> Answer:
    outcome = erasure.erase(tenants[0], slug, f"person={person}")
    recorded = record.find(tenants[0], outcome["erasure_id"])
    return {"covers": recorded.covers, "dataset": recorded.dataset_id, "slug": slug, "person": person}


def accept(tenants: Sequence[Tenant]) -> Answer:
    return {"losses": len(data_loss.accept(tenants[0], data_loss.find_losses(tenants[0])))}


def limit(tenants: Sequence[Tenant], records: int) -> Answer:
    """Set a tenant's quota."""
    return {"limits": str(quotas.set_limits(tenants[0], max_records_per_month=records))}


def upkeep(tenants: Sequence[Tenant], tasks: Sequence[str] | None = None) -> Answer:
    """Run all upkeep tasks that the tenants' tables need, as the job does."""
    tenant_ids = {tenant.tenant_id for tenant in tenants}
    due = [need for need in needs() if need.tenant.tenant_id in tenant_ids and need.task in (tasks or Task)]
    with spark.session() as session:
        done = list(run_upkeep(lambda: session, due, run_id=None, seconds=UPKEEP_S))
    return {
        "outcomes": Counter(task.outcome for task in done),
        "failed": [asdict(task) for task in done if task.outcome in ("failed", "rolled_back")],
    }


def retain(tenants: Sequence[Tenant], data: str) -> Answer:
    """Remove raw objects, or claims, that are beyond their retention."""
    os.environ |= RETENTION[data]
    load_settings.cache_clear()
    need = Need(tenants[0], None, None, Task.RETENTION, "chaos", 0)
    with spark.session() as session:
        (done,) = run_upkeep(lambda: session, [need], run_id=None, seconds=UPKEEP_S)
    return {"outcome": done.outcome, "detail": done.detail}


def curate(tenants: Sequence[Tenant]) -> Answer:
    """Compute all due days of all tenants, as the job does."""
    tenant_ids = {tenant.tenant_id for tenant in tenants}
    days = due_days(rollups.team_rollups(), datetime.min.replace(tzinfo=UTC)).days
    ready = [day for day in days if day.ready and day.tenant.tenant_id in tenant_ids]
    with spark.session() as session:
        done = compute(session, ready)
    return {
        "days": len(done.days),
        "errors": [str(day.error) for day in done.days if day.error],
        "failures": [asdict(failure) for failure in done.failures],
    }


def uri(tenant: Tenant, version: int) -> str:
    """URI of a version of the schema that all datasets follow."""
    return str(SchemaUri(tenant.slug, NAME, version))


COMMANDS: dict[str, Callable[..., Answer]] = {
    "ingest": ingest,
    "replay": replay,
    "discard": discard,
    "backfill": rebuild,
    "move": move,
    "delete": delete,
    "create": create,
    "erase": erase,
    "accept": accept,
    "quota": limit,
    "upkeep": upkeep,
    "retain": retain,
    "curate": curate,
}
