"""Syncs: received part by part, listed, and decided by a person where one is held."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pulse_pipelines.domain.syncs import Part, SyncState
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import sync_progress
from pulse_pipelines.entities.sync_progress import Counts
from pulse_pipelines.tables.digests import Digests
from pulse_resources import postgres
from pulse_resources.errors import Conflict, NotFound, UserError
from pulse_resources.process.faults import fail_point

DATASET = """
SELECT dataset_id, claim_seed FROM pdm_datasets
WHERE slug = %(slug)s AND tenant_id = app_tenant() AND (kind = 'entities' OR %(any)s)
"""
LATEST = """
SELECT sync_id, state, request_id, parts, is_full FROM entity_syncs
WHERE dataset_id = %s AND sequence_id = %s ORDER BY sync_id DESC LIMIT 1
"""
SUPERSEDE = """
UPDATE entity_syncs SET state = 'superseded', ended_at = now()
WHERE dataset_id = %s AND sync_id < %s AND is_full AND state IN ('open', 'sent', 'held')
"""
BEGIN = """
INSERT INTO entity_syncs (tenant_id, dataset_id, is_full, sequence_id, request_id, starts)
VALUES (%s, %s, %s, %s, %s, %s) RETURNING sync_id
"""
# Only as the part that follows the one before it: of two requests at the same time one is refused.
TAKE = """
UPDATE entity_syncs SET request_id = %(request)s, parts = parts + 1, part_at = now(), ends = %(ends)s,
    state = CASE WHEN %(last)s THEN 'sent' ELSE 'open' END
WHERE sync_id = %(sync)s AND state = 'open' AND request_id = %(after)s AND (parts = 0) = %(first)s
"""
_SYNCS = """
SELECT s.sync_id, d.slug AS dataset, s.sequence_id, s.is_full, s.state, s.parts, s.created, s.changed,
    s.unchanged, s.deleted, s.refused, s.entities, s.absent, s.reason, s.begun_at, s.settled_at, s.ended_at
FROM entity_syncs s JOIN pdm_datasets d USING (dataset_id)
"""
LIST = f"{_SYNCS} WHERE d.slug = %s AND d.tenant_id = app_tenant() ORDER BY s.sync_id DESC LIMIT %s"
ONE = f"{_SYNCS} WHERE s.sync_id = %s AND s.tenant_id = app_tenant()"
DECIDE = """
UPDATE entity_syncs
SET state = %(state)s, ended_at = CASE WHEN %(state)s = 'deleting' THEN NULL ELSE now() END
WHERE sync_id = %(sync)s AND state = 'held' AND dataset_id = %(dataset)s
"""
ALLOW = "UPDATE entity_logs SET deletes_most = %s WHERE dataset_id = %s"
LISTED = 100


@dataclass(frozen=True)
class OpenedPart:
    """A part of a sync whose events may be published now."""

    dataset_id: UUID
    claim_seed: int
    sync_id: int
    part: Part
    repeated: bool
    """An earlier request has sent it; its sender did not get the answer."""


@dataclass(frozen=True)
class Sync:
    """A sync as people see it."""

    sync_id: int
    dataset: str
    sequence_id: str
    is_full: bool
    state: SyncState
    parts: int
    created: int
    changed: int
    unchanged: int
    deleted: int
    refused: int
    entities: int | None
    absent: int | None
    reason: str | None
    begun_at: datetime
    settled_at: datetime | None
    ended_at: datetime | None


def begin(tenant: Tenant, slug: str, part: Part) -> OpenedPart:
    """Check that a part is the next one of its sync, before any of its events is published.

    Raises:
        NotFound: the tenant has no such dataset of entities.
        Conflict: the chain is broken; nothing was taken.
        Transient: the broker does not answer, or too many syncs have not settled.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        dataset_id, seed = _dataset(connection, tenant, slug)
        row = connection.execute(LATEST, [dataset_id, part.sequence_id]).fetchone()
        number, state, before, parts, is_full = row or (0, "", None, 0, part.is_full)
        if row is not None and before == part.request_id and is_full == part.is_full:
            if parts and (not part.is_first or state == SyncState.OPEN):
                return OpenedPart(dataset_id, seed, number, part, repeated=True)
            if part.is_first and state == SyncState.OPEN:
                return OpenedPart(dataset_id, seed, number, part, repeated=False)
        if part.is_first:
            sync_progress.make_room(connection, tenant, dataset_id)
            number = open_sync(connection, tenant, dataset_id, part)
        elif row is None or state != SyncState.OPEN or before != part.previous_request_id or not parts:
            raise _broken(tenant, slug, part, "no such sync is open" if state != SyncState.OPEN else
                          f"the part before is {before!r}")  # fmt: skip
        elif is_full != part.is_full:
            raise _broken(tenant, slug, part, f"the sync began with is_full={str(is_full).lower()}")
        return OpenedPart(dataset_id, seed, number, part, repeated=False)


def open_sync(connection: postgres.Connection, tenant: Tenant, dataset_id: UUID, part: Part) -> int:
    """Begin a sync where the topic ends now. Raises Transient: the broker does not answer."""
    starts = sync_progress.as_json(sync_progress.ends_of(tenant, connection))
    values = [tenant.tenant_id, dataset_id, part.is_full, part.sequence_id, part.request_id, starts]
    ((number,),) = connection.execute(BEGIN, values).fetchall()
    return int(number)


def supersede(connection: postgres.Connection, dataset_id: UUID, sync_id: int) -> None:
    """End earlier full syncs that are under way. Call it once a first part of this one is accepted."""
    connection.execute(SUPERSEDE, [dataset_id, sync_id])


def finish(tenant: Tenant, slug: str, opened_part: OpenedPart, refused: Sequence[str | None]) -> None:
    """Enter a part: the broker has acknowledged all its events except those that were refused.

    Args:
        refused: the ids of these entities; None where it is not known.

    Raises:
        Conflict: another request was faster, or the sync ended meanwhile.
        Transient: the broker does not answer.
    """
    if opened_part.repeated:
        return
    part, names = opened_part.part, [entity_id for entity_id in refused if entity_id is not None]
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        ends = sync_progress.as_json(sync_progress.ends_of(tenant, connection)) if part.is_last else None
        values = {
            "sync": opened_part.sync_id,
            "request": part.request_id,
            "after": part.request_id if part.is_first else part.previous_request_id,
            "first": part.is_first,
            "last": part.is_last,
            "ends": ends,
        }
        fail_point("sync.before_take")
        if connection.execute(TAKE, values).rowcount != 1:
            raise _broken(tenant, slug, part, "another request was faster, or the sync ended meanwhile")
        if part.is_first and part.is_full:
            supersede(connection, opened_part.dataset_id, opened_part.sync_id)
        if refused:
            counts = Counts(refused=len(refused), nameless=len(refused) - len(names))
            sync_progress.count(connection, {opened_part.sync_id: counts})
            digests = Digests.of(names, opened_part.claim_seed)
            sync_progress.add_ids(connection, tenant.tenant_id, opened_part.sync_id, digests)
    fail_point("sync.after_take")


def list_syncs(tenant: Tenant, slug: str, limit: int = LISTED) -> list[Sync]:
    """The syncs of a dataset, the latest first; for a dataset of events, the runs of its pipe.

    Raises:
        NotFound: the tenant has no such dataset.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        _dataset(connection, tenant, slug, of_any_kind=True)
        return postgres.select(connection, Sync, LIST, [slug, limit])


def decide(tenant: Tenant, slug: str, sync_id: int, *, commit: bool) -> Sync:
    """Let a held sync delete the entities missing from it, or delete nothing; returns the sync.

    Raises:
        NotFound: the tenant has no such dataset of entities.
        Conflict: the sync is not held.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        dataset_id, _ = _dataset(connection, tenant, slug)
        state = SyncState.DELETING if commit else SyncState.ROLLED_BACK
        values = {"sync": sync_id, "state": state, "dataset": dataset_id}
        if connection.execute(DECIDE, values).rowcount != 1:
            raise Conflict(
                "no sync with this number is held",
                fix=f"List the syncs: pulse sync list {tenant.slug} {slug}",
                tenant=tenant.slug,
                dataset=slug,
                sync=sync_id,
            )
        return postgres.select(connection, Sync, ONE, [sync_id])[0]


def allow(tenant: Tenant, slug: str, share: float) -> None:
    """Set the share of a dataset's entities that a full sync may delete without confirmation.

    Raises:
        NotFound: the tenant has no such dataset of entities.
        UserError: it is not a share.
    """
    if not 0 <= share <= 1:
        raise UserError(f"{share} is not a share", fix="Give a number between 0 and 1")
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        dataset_id, _ = _dataset(connection, tenant, slug)
        connection.execute(ALLOW, [share, dataset_id])


def _dataset(
    connection: postgres.Connection, tenant: Tenant, slug: str, *, of_any_kind: bool = False
) -> tuple[UUID, int]:
    row = connection.execute(DATASET, {"slug": slug, "any": of_any_kind}).fetchone()
    if row is None:
        kind = "dataset" if of_any_kind else "dataset of entities"
        raise NotFound(f"no such {kind}", tenant=tenant.slug, dataset=slug)
    return row[0], row[1]


def _broken(tenant: Tenant, slug: str, part: Part, why: str) -> Conflict:
    return Conflict(
        f"the chain of the sync is broken: {why}",
        fix="Nothing is deleted by it. Begin a new sync with its first part",
        tenant=tenant.slug,
        dataset=slug,
        sequence=part.sequence_id,
        request=part.request_id,
    )
