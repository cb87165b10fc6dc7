"""Erase: remove a person's events from every store, one step after the other, then look whether it is so.

What is covered are the events that were settled when it began: what comes later takes another erasure.
Nothing else rewrites the table meanwhile, and a tenant has one erasure at a time; ingestion goes on. Steps of
which something is left are done again, until nothing is: only then there is a receipt.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure import curated, history, letters, raw, record, rows, staged, verify
from pulse_pipelines.erasure.record import Erasure
from pulse_pipelines.erasure.remains import deleted, remains
from pulse_pipelines.erasure.subject import Subject, subject
from pulse_pipelines.erasure.verify import Verified
from pulse_pipelines.maintenance import rewrite
from pulse_pipelines.tables import leases, live_table
from pulse_pipelines.tables.rewrite_file import Rewriter
from pulse_resources import postgres, spark
from pulse_resources.errors import NotFound, Terminal, Transient, UserError
from pulse_resources.faults import fail_point

PATIENCE_S = 60.0
"""To wait for a backfill or for upkeep of the same table."""
ROUNDS = 5
"""Of steps and a look at everything, until nothing may be left."""
SHOWN = 5
"""Leftovers that an error names."""

Step = Callable[[Tenant, Subject, Erasure], None]
FOLLOWING = {rows.STEP: frozenset({history.STEP, curated.STEP})}
"""Steps that are to be done again when a step was."""


def _steps(rewriter: Rewriter) -> dict[str, Step]:
    """What an erasure does, in this order."""
    return {
        rows.STEP: partial(rows.erase, rewriter),
        letters.STEP: letters.erase,
        staged.STEP: staged.erase,
        raw.STEP: raw.erase,
        history.STEP: history.forget,
        curated.STEP: curated.erase,
    }


@dataclass(frozen=True)
class ErasurePreview:
    """What an erasure would remove."""

    rows: int
    files: int
    """That hold these rows."""
    dead_letters: int
    raw_events: int
    raw_objects: int


def preview(tenant: Tenant, slug: str, where: str, known: frozenset[str] | None = None) -> ErasurePreview:
    """What an erasure would remove now; nothing is changed.

    Raises:
        as `erase`.
    """
    found = replace(_subject(tenant, slug, where), known=known)
    found = found.covering(record.settled(tenant, found.dataset))
    files = live_table.of_current(lambda table: rows.matching(table, found), tenant, found.dataset)
    places = {place for _, of_file in files for place in of_file}
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        dead = set(letters.search(connection, tenant, found).hit) - places  # which landed are rows
    objects, events = raw.count(tenant, found)
    return ErasurePreview(len(places), len(files), len(dead), events, objects)


def erase(
    tenant: Tenant,
    slug: str,
    where: str,
    progress: Callable[[str], None] = lambda step: None,
    known: frozenset[str] | None = None,
) -> dict[str, Any]:
    """Remove the events of a dataset with `<field>=<value>` from everywhere; the receipt.

    Called again after it was killed, it completes what it had begun.

    Args:
        where: see `erasure.subject`.
        progress: told the name of each step when it begins, and of the data files how many are written.
        known: where given, what was received for a dataset that is not among these is erased along.

    Raises:
        NotFound: the tenant has no such dataset.
        UserError: `where` names nothing that can be looked for.
        Terminal: the table is gone, or has delete files of another engine; or the dataset was deleted
            meanwhile, and the error says where its files are.
        Transient: the table is being rewritten, or the object store failed, or Spark does not answer, or
            something is left however often it is removed; do it again.
        PySparkException: a task failed; do it again.
    """
    found = replace(_subject(tenant, slug, where), known=known)

    def written(files: int, wanted: int) -> None:
        progress(f"{rows.STEP}, {files:,} of {wanted:,} data files are written")

    with _alone(tenant, found), spark.session_on_demand() as session:
        erasure = record.begin(tenant, found)
        fail_point("erase.planned")
        found = found.covering(erasure.covers)
        table = (tenant, found.dataset.dataset_id, slug)
        rewriter = rewrite.on_spark(session, *table, "an erasure", progress=written)
        try:
            verified = _until_clean(tenant, found, erasure.erasure_id, _steps(rewriter), progress)
        except Terminal as error:
            raise _because_deleted(tenant, found, error) from error
        fail_point("erase.verified")
        return receipt(tenant, record.finish(tenant, erasure.erasure_id, remains(tenant, found), verified))


def _until_clean(
    tenant: Tenant,
    found: Subject,
    erasure_id: str,
    steps: Mapping[str, Step],
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """All steps, then those again of which a look at the stores finds something left; what was looked at."""
    wanted = frozenset(steps)
    for number in range(1, ROUNDS + 1):
        for name, step in steps.items():
            if name in wanted:
                progress(name)
                step(tenant, found, record.find(tenant, erasure_id))
                fail_point(f"erase.after.{name}")
        progress("verification")
        seen = verify.look(tenant, found, record.find(tenant, erasure_id))
        if seen.clean:
            return {"rounds": number, "looked_at": seen.looked_at}
        wanted = frozenset(seen.left).union(*(FOLLOWING.get(name, ()) for name in seen.left))
    raise _left(tenant, found, erasure_id, seen)


def _left(tenant: Tenant, found: Subject, erasure_id: str, seen: Verified) -> Transient:
    more = len(seen.leftovers) - SHOWN
    named = "; ".join(seen.leftovers[:SHOWN]) + (f"; and {more} more" if more > 0 else "")
    return Transient(
        f"events of the person are still there after {ROUNDS} rounds: {named}",
        fix="Another writer keeps bringing them back, such as another engine. End it, then repeat the "
        "command: it goes on with this erasure",
        tenant=tenant.slug,
        dataset=found.dataset.slug,
        erasure=erasure_id,
    )


def _because_deleted(tenant: Tenant, found: Subject, error: Terminal) -> Terminal:
    """What went wrong; where the dataset is gone, that is why."""
    dataset = found.dataset
    gone = [each for each in deleted(tenant, dataset.slug) if each.dataset_id == dataset.dataset_id]
    if not gone:
        return error
    return Terminal(
        "the dataset was deleted while events were erased from it",
        fix=f"Its files stay and may hold what was not erased yet: {gone[0].metadata_location}. A new "
        "dataset of the slug can be erased from: that covers dead letters and the raw zone",
        tenant=tenant.slug,
        dataset=dataset.slug,
    )


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
            "summaries": steps[rows.STEP]["summaries"] + steps[curated.SUMMARIES],
            "snapshots": steps[history.STEP]["snapshots_dropped"],
        },
        "table": steps[rows.STEP] | steps[history.STEP],
        "raw_zone": {name: raw_zone[name] for name in ("objects", "orphans")},
        "dead_letters": steps[letters.STEP],
        "curated": steps[curated.STEP],
        "verified": steps["verified"],
        "remains": steps["remains"],
    }


def verified(tenant: Tenant, erasure_id: str, where: str) -> Verified:
    """Look again for what an erasure removed; it takes about half as long as the erasure did.

    Raises:
        NotFound: there is no such erasure.
        UserError: it was made with another field or value.
        OSError: the object store failed.
    """
    erasure = record.find(tenant, erasure_id)
    found = _subject(tenant, erasure.slug, where)
    if found.name != erasure.field or not erasure.is_of(found.value):
        raise UserError("the erasure is of another field or value", erasure=erasure_id, field=erasure.field)
    return verify.look(tenant, found.covering(erasure.covers), erasure)


def _subject(tenant: Tenant, slug: str, where: str) -> Subject:
    try:
        found = subject(registry.find_dataset(tenant, slug), where)
        if found.dataset.of_entities and found.path != ("event_id",):
            raise UserError(
                "entities are erased whole: without some of its versions an earlier one would be the latest",
                fix="Name each by its _id: --where event_id=<_id>",
                tenant=tenant.slug,
                dataset=slug,
            )
        return found
    except NotFound:
        if not deleted(tenant, slug):
            raise
        raise NotFound(
            "the dataset was deleted: its files stay",
            fix="Create a dataset of this slug to erase what dead letters and the raw zone say",
            tenant=tenant.slug,
            dataset=slug,
        ) from None


@contextmanager
def _alone(tenant: Tenant, found: Subject) -> Iterator[None]:
    # Folders of the raw zone are shared by the tenant's datasets, so two of its erasures take turns.
    with (
        leases.rewriting(tenant.tenant_id, of="tenant", wait_seconds=PATIENCE_S),
        leases.rewriting(found.dataset.dataset_id, wait_seconds=PATIENCE_S),
    ):
        yield
