"""Erase: remove a person's events from every store, one step after the other, each safe to do again.

What is covered are the events that were settled when it began: what comes later takes another erasure.
Nothing else rewrites the table meanwhile, and a tenant has one erasure at a time; ingestion goes on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure import curated, history, letters, raw, record, rows
from pulse_pipelines.erasure.record import Erasure
from pulse_pipelines.erasure.remains import remains
from pulse_pipelines.erasure.subject import Subject, subject
from pulse_pipelines.stages import rewrite
from pulse_resources import postgres
from pulse_resources.errors import UserError
from pulse_resources.faults import fail_point

PATIENCE_S = 60.0
"""To wait for a backfill or for upkeep of the same table."""

Step = Callable[[Tenant, Subject, Erasure], None]
STEPS: tuple[tuple[str, Step], ...] = (
    (rows.STEP, rows.erase),
    (letters.STEP, letters.erase),
    (raw.STEP, raw.erase),
    (history.STEP, history.forget),
    (curated.STEP, curated.erase),
)


@dataclass(frozen=True)
class Survey:
    """What an erasure would remove."""

    rows: int
    files: int
    """That hold these rows."""
    dead_letters: int
    raw_events: int
    raw_objects: int


def survey(tenant: Tenant, slug: str, where: str) -> Survey:
    """What an erasure would remove now; nothing is changed.

    Raises:
        as `erase`.
    """
    found = _subject(tenant, slug, where)
    found = found.covering(record.settled(tenant, found.dataset))
    files = rows.matching(rewrite.current(tenant, found.dataset), found)
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        dead = len(letters.search(connection, tenant, found).hit)
    objects, events = raw.count(tenant, found)
    return Survey(sum(len(places) for _, places in files), len(files), dead, events, objects)


def erase(
    tenant: Tenant, slug: str, where: str, progress: Callable[[str], None] = lambda step: None
) -> dict[str, Any]:
    """Remove the events of a dataset with `<field>=<value>` from everywhere; the receipt.

    Called again after it was killed, it completes what it had begun.

    Args:
        where: see `erasure.subject`.
        progress: told the name of each step when it begins.

    Raises:
        NotFound: the tenant has no such dataset.
        UserError: `where` names nothing that can be looked for.
        Terminal: the table is gone, or has delete files of another engine.
        Transient: the table is being rewritten, or the object store failed; do it again.
    """
    found = _subject(tenant, slug, where)
    with _alone(tenant, found):
        erasure = record.begin(tenant, found)
        fail_point("erase.planned")
        found = found.covering(erasure.covers)
        for name, step in STEPS:
            if not _complete(erasure, name):
                progress(name)
                step(tenant, found, erasure)
                erasure = record.find(tenant, erasure.erasure_id)
            fail_point(f"erase.after.{name}")
        return receipt(tenant, record.finish(tenant, erasure.erasure_id, remains(tenant, found)))


def receipt(tenant: Tenant, erasure: Erasure) -> dict[str, Any]:
    """What was removed where, and what remains, as JSON. The value is not in it."""
    steps = erasure.steps
    raw_zone = steps[raw.STEP]
    return {
        "erasure_id": erasure.erasure_id,
        "tenant": tenant.slug,
        "dataset": erasure.slug,
        "field": erasure.field,
        "started_at": erasure.started_at,
        "finished_at": erasure.finished_at,
        "covers": {f"partition {number}": f"offsets below {end}" for number, end in erasure.covers.items()},
        "removed": {
            "rows": steps[rows.STEP]["rows"],
            "dead_letters": steps[letters.STEP]["emptied"],
            "raw_events": sum(entry["events"] for entry in raw_zone["objects"]),
            "summaries": steps[rows.STEP]["summaries"],
            "snapshots": steps[history.STEP]["snapshots_dropped"],
        },
        "table": steps[rows.STEP] | steps[history.STEP],
        "raw_zone": {name: raw_zone[name] for name in ("objects", "orphans")},
        "dead_letters": steps[letters.STEP],
        "curated": steps[curated.STEP],
        "remains": steps.get("remains", []),
    }


def _subject(tenant: Tenant, slug: str, where: str) -> Subject:
    return subject(registry.find_dataset(tenant, slug), where)


def _complete(erasure: Erasure, step: str) -> bool:
    result = erasure.steps.get(step)
    return result is not None and (step != raw.STEP or result.get("complete", False))


@contextmanager
def _alone(tenant: Tenant, found: Subject) -> Iterator[None]:
    # Folders of the raw zone are shared by the tenant's datasets, so two of its erasures take turns.
    with (
        rewrite.lease(tenant.tenant_id, wait_seconds=PATIENCE_S),
        rewrite.lease(found.dataset.dataset_id, wait_seconds=PATIENCE_S),
    ):
        yield


def of_value(tenant: Tenant, erasure_id: str, where: str) -> tuple[Erasure, Subject]:
    """An erasure and its subject, for whoever knows the value.

    Raises:
        NotFound: there is no such erasure.
        UserError: it was made with another field or value.
    """
    erasure = record.find(tenant, erasure_id)
    found = _subject(tenant, erasure.slug, where)
    if found.field != erasure.field or not erasure.is_of(found.value):
        raise UserError("the erasure is of another field or value", erasure=erasure_id, field=erasure.field)
    return erasure, found.covering(erasure.covers)
