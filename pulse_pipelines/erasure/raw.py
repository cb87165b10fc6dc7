"""Raw zone: objects with the person's events are rewritten without those lines.

An event is in its dataset's folder, or in `_unresolved` if its dataset did not exist yet. Objects are
immutable: a new one is written, both are registered in one transaction, then the old one is deleted. An
object that no batch registered (left by a failed attempt) is deleted if it contains the person's events.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby

import orjson

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure import record
from pulse_pipelines.erasure.record import Erasure
from pulse_pipelines.erasure.subject import Subject
from pulse_pipelines.maintenance.remove_orphan_files import in_flight
from pulse_pipelines.tables import raw_zone
from pulse_pipelines.tables.written_files import RawPart
from pulse_resources import object_store, postgres
from pulse_resources.process.faults import fail_point
from pulse_resources.settings import load_settings

STEP = "raw_zone"
TOGETHER = 50
"""Objects per transaction ..."""
AT_A_TIME = 4
"""... of which so many are read in parallel."""

REGISTERED = """
SELECT batch_id, path, slug, day, events, start, bytes FROM raw_objects
WHERE tenant_id = %s AND slug = ANY(%s) AND removed_at IS NULL ORDER BY path, start
"""
EVERY_PATH = "SELECT path, removed_at IS NOT NULL FROM raw_objects WHERE tenant_id = %s AND slug = ANY(%s)"
REMOVE = """
UPDATE raw_objects SET removed_at = now() WHERE tenant_id = %s AND path = %s AND removed_at IS NULL
"""


@dataclass(frozen=True)
class Registered:
    """A raw object registered by a settled batch."""

    path: str
    batch_id: str
    parts: Sequence[RawPart]


@dataclass(frozen=True)
class CleanedObject:
    """A raw object that held events of the person, and its replacement."""

    before: Registered
    erased: int
    parts: Sequence[RawPart]
    """Parts of the replacement; empty: the object held nothing else."""


def erase(tenant: Tenant, subject: Subject, erasure: Erasure) -> None:
    """Remove the person's lines from the tenant's raw zone; continues where an earlier call stopped.

    Raises:
        OSError: the object store failed; finished work is recorded.
        psycopg.OperationalError: Postgres failed; finished work is recorded.
    """
    step = erasure.steps.get(STEP) or {"objects": [], "orphans": 0}
    object_store.delete(entry["removed"] for entry in step["objects"])  # left by an earlier process that died
    registered = _registered(tenant, subject)
    with ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="erase") as pool:
        for start in range(0, len(registered), TOGETHER):
            chunk = registered[start : start + TOGETHER]
            cleaned = [c for c in pool.map(lambda entry: _clean(entry, subject, erasure), chunk) if c]
            if cleaned:
                _commit(tenant, erasure.erasure_id, cleaned, step)
                fail_point("erase.raw.before_delete")
                object_store.delete(entry.before.path for entry in cleaned)
    orphans = [path for path in unregistered(tenant, subject) if _matching_lines(path, subject)]
    object_store.delete(orphans)
    step["orphans"] += len(orphans)
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        record.done(connection, tenant, erasure.erasure_id, STEP, step)


def slugs(subject: Subject) -> list[str]:
    """Raw-zone folders that may hold events of the subject's dataset."""
    return [subject.dataset.slug, raw_zone.UNRESOLVED]


def _registered(tenant: Tenant, subject: Subject) -> list[Registered]:
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        rows = connection.execute(REGISTERED, [tenant.tenant_id, slugs(subject)])
        return [
            Registered(path, batch, [RawPart(path, *part) for _, _, *part in of_object])
            for (path, batch), of_object in groupby(rows, key=lambda row: (row[1], row[0]))
        ]


def count(tenant: Tenant, subject: Subject) -> tuple[int, int]:
    """Count registered objects that contain events of the person, and those events."""
    with ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="search") as pool:
        counts = list(
            pool.map(lambda entry: len(_matching_lines(entry.path, subject)), _registered(tenant, subject))
        )
    return sum(hits > 0 for hits in counts), sum(counts)


def unregistered(tenant: Tenant, subject: Subject) -> Iterator[str]:
    """Objects in the store that should not exist: no batch registered them, or they are marked as removed.

    The store is listed first, then batches in flight are read, then registered objects: an object of a batch
    that settles in between is in one of the two.
    """
    bucket = load_settings().object_store.bucket
    listed = [
        listed_object
        for slug in slugs(subject)
        for listed_object in object_store.listed(f"{tenant.raw_prefix(bucket, slug)}/")
    ]
    spared = in_flight(tenant)
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        by_path = dict(connection.execute(EVERY_PATH, [tenant.tenant_id, slugs(subject)]).fetchall())
    for listed_object in listed:
        if by_path.get(listed_object.path, True) and listed_object.name.partition("-")[0] not in spared:
            yield listed_object.path


def _matching_lines(path: str, subject: Subject) -> frozenset[int]:
    try:
        return events_of(raw_zone.content(path), subject)
    except FileNotFoundError:  # upkeep deleted it first
        return frozenset()


def events_of(packed: bytes, subject: Subject) -> frozenset[int]:
    """Line numbers in a raw object of events of the person.

    Raises:
        OSError: the object is damaged.
    """
    return frozenset(number for number, line in enumerate(raw_zone.unpack(packed)) if _is_of(line, subject))


def _is_of(line: bytes, subject: Subject) -> bool:
    message = raw_zone.message(line, subject.may_be_in)
    if message is None or not subject.covered(message.partition, message.offset):
        return False
    try:
        return subject.is_of(orjson.loads(message.payload))
    except orjson.JSONDecodeError:  # undecodable bytes belong to no person here: dead letters cover them
        return False


def _clean(entry: Registered, subject: Subject, erasure: Erasure) -> CleanedObject | None:
    try:
        content = raw_zone.content(entry.path)
    except FileNotFoundError:  # upkeep deleted it first
        return None
    # Retries write the same name and the same bytes.
    path = f"{entry.path.removesuffix(raw_zone.SUFFIX)}-{erasure.erasure_id}{raw_zone.SUFFIX}"
    rewritten = bytearray()
    erased = 0
    parts: list[RawPart] = []
    for part in entry.parts:
        packed = content[part.start : part.start + part.bytes]
        hits = events_of(packed, subject)
        erased += len(hits)
        if len(hits) == part.events:
            continue
        if hits:
            lines = enumerate(raw_zone.unpack(packed))
            packed = raw_zone.pack(line for number, line in lines if number not in hits)
        remaining = part.events - len(hits)
        parts.append(RawPart(path, part.slug, part.day, remaining, len(rewritten), len(packed)))
        rewritten += packed
    if not erased:
        return None
    if parts:
        object_store.put(path, bytes(rewritten))
    return CleanedObject(entry, erased, parts)


def _commit(
    tenant: Tenant, erasure_id: str, cleaned: Sequence[CleanedObject], step: dict[str, object]
) -> None:
    """Register the new objects in place of the old ones, except those that retention removed meanwhile."""
    entries = list(step["objects"])  # type: ignore[call-overload]
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        for result in cleaned:
            before = result.before
            if not connection.execute(REMOVE, [tenant.tenant_id, before.path]).rowcount:
                continue
            raw_zone.register(connection, tenant.tenant_id, before.batch_id, result.parts)
            instead = result.parts[0].path if result.parts else None
            entries.append({"removed": before.path, "instead": instead, "events": result.erased})
        record.done(connection, tenant, erasure_id, STEP, step | {"objects": entries})
        fail_point("erase.raw.before_commit")
    step["objects"] = entries
