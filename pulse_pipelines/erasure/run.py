"""Erase: removes a person's events from every store, step by step, and verifies the result.

An erasure covers the events that were settled when it began: later events need another erasure. It holds the
table's rewrite lease, and a tenant has one erasure at a time; ingestion continues. Steps that left something
behind are repeated until nothing is left: only then a receipt is issued.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure import (
    curated,
    history,
    letters,
    raw,
    record,
    rows,
    staged,
    states,
    verify,
)
from pulse_pipelines.erasure.own import tables as own_tables
from pulse_pipelines.erasure.record import Erasure
from pulse_pipelines.erasure.remains import deleted, remains
from pulse_pipelines.erasure.subject import Subject, subject
from pulse_pipelines.erasure.verify import Verified
from pulse_pipelines.maintenance import rewrite
from pulse_pipelines.maintenance.history import check_none_died
from pulse_pipelines.tables import leases, live_table
from pulse_pipelines.tables.rewrite_file import Rewriter
from pulse_resources import postgres, spark
from pulse_resources.errors import NotFound, Terminal, Transient, UserError
from pulse_resources.process.faults import fail_point

PATIENCE_S = 60.0
"""How long to wait for a backfill or upkeep of the same table."""
ROUNDS = 5
"""Rounds of steps and verification, at most, until nothing is left."""
SHOWN = 5
"""Leftovers that an error lists."""

Step = Callable[[Tenant, Subject, Erasure], None]
FOLLOWING = {rows.STEP: frozenset({states.STEP, history.STEP, curated.STEP})}
"""Steps that have to be repeated after a repeated step."""


def _steps(rewriter: Rewriter, progress: Callable[[str], None]) -> dict[str, Step]:
    """The steps of an erasure, in order."""
    return {
        rows.STEP: partial(rows.erase, rewriter),
        states.STEP: states.erase,
        letters.STEP: letters.erase,
        staged.STEP: staged.erase,
        raw.STEP: raw.erase,
        history.STEP: history.forget,
        curated.STEP: curated.erase,
        own_tables.STEP: partial(own_tables.erase, progress),
    }


@dataclass(frozen=True)
class ErasurePreview:
    """Preview of what an erasure would remove."""

    rows: int
    files: int
    """Number of data files with these rows."""
    dead_letters: int
    raw_events: int
    raw_objects: int


def preview(tenant: Tenant, slug: str, where: str, existing: frozenset[str] | None = None) -> ErasurePreview:
    """Count what an erasure would remove now; changes nothing.

    Raises:
        as `erase`.
    """
    target = replace(_subject(tenant, slug, where), existing=existing)
    target = target.covering(record.settled(tenant, target.dataset))
    files = live_table.of_current(lambda table: rows.matching(table, target), tenant, target.dataset)
    places = {place for _, of_file in files for place in of_file}
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        dead = set(letters.search(connection, tenant, target).hit) - places  # landed ones are rows
    objects, events = raw.count(tenant, target)
    return ErasurePreview(len(places), len(files), len(dead), events, objects)


def erase(
    tenant: Tenant,
    slug: str,
    where: str,
    progress: Callable[[str], None] = lambda step: None,
    existing: frozenset[str] | None = None,
) -> dict[str, Any]:
    """Erase the events of a dataset with `<field>=<value>` from every store; returns the receipt.

    Resumable: called again after the process was killed, it completes the erasure.

    Args:
        where: see `erasure.subject`.
        progress: called with the name of each step when it begins, with the data files written so far, and
            with the name of each own table.
        existing: if given, also erases what was received for datasets that are not among these, and from
            tables of the tenant's own that ask for it.

    Raises:
        NotFound: the tenant has no such dataset.
        UserError: `where` is not a valid condition.
        Terminal: the table is gone, or has delete files of another engine; or the dataset was deleted
            meanwhile, and the error says where its files are; or an own table is beyond the limits.
        Transient: the table is being rewritten, the object store failed, Spark does not answer, or
            something is left after all rounds; retry.
        PySparkException: a task failed; retry.
    """
    target = replace(_subject(tenant, slug, where), existing=existing)

    def written(files: int, total: int) -> None:
        progress(f"{rows.STEP}, {files:,} of {total:,} data files are written")

    with _alone(tenant, target), spark.session_on_demand() as session:
        check_none_died(tenant, target.dataset)  # its history could not be dropped: better nothing yet
        erasure = record.begin(tenant, target)
        fail_point("erase.planned")
        target = target.covering(erasure.covers)
        table = (tenant, target.dataset.dataset_id, slug)
        rewriter = rewrite.on_spark(session, *table, "an erasure", progress=written)
        try:
            verified = _until_clean(tenant, target, erasure.erasure_id, _steps(rewriter, progress), progress)
        except Terminal as error:
            raise _because_deleted(tenant, target, error) from error
        fail_point("erase.verified")
        remaining = remains(tenant, target, record.find(tenant, erasure.erasure_id).steps)
        return receipt(tenant, record.finish(tenant, erasure.erasure_id, remaining, verified))


def _until_clean(
    tenant: Tenant,
    target: Subject,
    erasure_id: str,
    steps: Mapping[str, Step],
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Run all steps, repeat those of which verification finds leftovers; returns what was verified."""
    pending = frozenset(steps)
    for number in range(1, ROUNDS + 1):
        for name, step in steps.items():
            if name in pending:
                progress(name)
                step(tenant, target, record.find(tenant, erasure_id))
                fail_point(f"erase.after.{name}")
        progress("verification")
        verification = verify.scan(tenant, target, record.find(tenant, erasure_id))
        if verification.clean:
            return {"rounds": number, "looked_at": verification.searched}
        pending = frozenset(verification.by_step).union(
            *(FOLLOWING.get(name, ()) for name in verification.by_step)
        )
    raise _leftovers(tenant, target, erasure_id, verification)


def _leftovers(tenant: Tenant, target: Subject, erasure_id: str, verification: Verified) -> Transient:
    more = len(verification.leftovers) - SHOWN
    named = "; ".join(verification.leftovers[:SHOWN]) + (f"; and {more} more" if more > 0 else "")
    return Transient(
        f"events of the person are still there after {ROUNDS} rounds: {named}",
        fix="Another writer keeps adding them, such as another engine. End it, then repeat the "
        "command: it continues this erasure",
        tenant=tenant.slug,
        dataset=target.dataset.slug,
        erasure=erasure_id,
    )


def _because_deleted(tenant: Tenant, target: Subject, error: Terminal) -> Terminal:
    """Add the cause to the error if the dataset was deleted meanwhile."""
    dataset = target.dataset
    deleted_before = [
        candidate for candidate in deleted(tenant, dataset.slug) if candidate.dataset_id == dataset.dataset_id
    ]
    if not deleted_before:
        return error
    return Terminal(
        "the dataset was deleted while events were erased from it",
        fix=f"Its files stay and may hold what was not erased yet: {deleted_before[0].metadata_location}. A "
        "new dataset of the slug can be erased from: that covers dead letters and the raw zone",
        tenant=tenant.slug,
        dataset=dataset.slug,
    )


def receipt(tenant: Tenant, erasure: Erasure) -> dict[str, Any]:
    """The receipt as JSON: what was removed from where, and what remains. It does not contain the value."""
    steps = erasure.steps
    raw_zone = steps[raw.STEP]
    outcomes = own_tables.erased(steps)
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
            "summaries": steps[rows.STEP]["summaries"] + steps[curated.SUMMARIES],
            "states": steps[rows.STEP].get("states", 0),
            "snapshots": steps[history.STEP]["snapshots_dropped"],
            "own_rows": sum(outcome.rows for outcome in outcomes),
        },
        "table": steps[rows.STEP] | steps[history.STEP],
        "raw_zone": {name: raw_zone[name] for name in ("objects", "orphans")},
        "dead_letters": steps[letters.STEP],
        "curated": steps[curated.STEP],
        "own_tables": [
            {
                "table": outcome.table,
                "rows": outcome.rows,
                "files": outcome.files,
                "snapshots_dropped": outcome.snapshots,
                "objects_deleted": outcome.objects,
            }
            for outcome in outcomes
        ],
        "verified": steps["verified"],
        "remains": steps["remains"],
    }


def verified(tenant: Tenant, erasure_id: str, where: str) -> Verified:
    """Verify an earlier erasure again; takes about half as long as the erasure did.

    Raises:
        NotFound: there is no such erasure.
        UserError: it was made for another field or value.
        OSError: the object store failed.
    """
    erasure = record.find(tenant, erasure_id)
    target = _subject(tenant, erasure.slug, where)
    if target.name != erasure.field or not erasure.is_of(target.value):
        raise UserError("the erasure is of another field or value", erasure=erasure_id, field=erasure.field)
    return verify.scan(tenant, target.covering(erasure.covers), erasure)


def _subject(tenant: Tenant, slug: str, where: str) -> Subject:
    try:
        target = subject(registry.find_dataset(tenant, slug), where)
        if target.dataset.of_entities and target.path != ("event_id",):
            raise UserError(
                "entities are erased whole: without some of its versions an earlier one would be the latest",
                fix="Name each by its _id: --where event_id=<_id>",
                tenant=tenant.slug,
                dataset=slug,
            )
        return target
    except NotFound:
        if not deleted(tenant, slug):
            raise
        raise NotFound(
            "the dataset was deleted: its files stay",
            fix="Create a dataset of this slug to erase from dead letters and the raw zone",
            tenant=tenant.slug,
            dataset=slug,
        ) from None


@contextmanager
def _alone(tenant: Tenant, target: Subject) -> Iterator[None]:
    # The tenant's datasets share folders of the raw zone, so erasures of a tenant exclude each other.
    with (
        leases.rewriting(tenant.tenant_id, of="tenant", wait_seconds=PATIENCE_S),
        leases.rewriting(target.dataset.dataset_id, wait_seconds=PATIENCE_S),
    ):
        yield
