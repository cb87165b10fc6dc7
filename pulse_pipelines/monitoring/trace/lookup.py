"""Lookup of an event by id or by position, in an order that finds events that settle meanwhile.

Waiting events are searched first: one that settles in between is found by the later steps.
"""

import contextlib
from dataclasses import replace
from datetime import UTC, date, datetime

from pulse_pipelines import dead_letters, registry
from pulse_pipelines.claims import claim_runs
from pulse_pipelines.dead_letters import DeadLetter
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.monitoring.trace import ledger, rows, topic
from pulse_pipelines.monitoring.trace.fate import Fate, FateState, Row, Trace, of_letter, ordered
from pulse_pipelines.monitoring.trace.ledger import Place
from pulse_pipelines.monitoring.trace.rows import FoundRow, Search
from pulse_pipelines.query.snapshots import store_errors_explained
from pulse_pipelines.tables import raw_zone
from pulse_pipelines.tables.raw_zone import Message
from pulse_resources import postgres
from pulse_resources.errors import FileGone, NotFound, Terminal, Transient
from pulse_resources.process.faults import fail_point

MAX_RAW_BYTES = 64 * 1024 * 1024
"""Maximum compressed bytes of a batch's raw objects that are read for one event."""
AFTER_ALL = 2**63 - 1
"""Beyond every offset."""
LOSS = "loss-"
"""Prefix of the id of a batch that stands for an accepted loss."""


def by_id(tenant: Tenant, event_id: str, *, dataset: str | None = None, day: date | None = None) -> Trace:
    """Find everything about an event id: waiting events, dead letters, its row.

    Args:
        dataset: limit the search to this dataset, where several have the id.
        day: day of the event's timestamp; only rows of that day are searched.

    Raises:
        NotFound: nothing is known of the id; or there is no such dataset, and no dead letter names it.
        Transient: the object store does not answer; or the broker does not, and nothing else knows the id.
        Terminal: a table is missing or damaged.
    """
    omissions: list[str] = []
    try:
        coming, unread = _find_waiting(tenant, event_id, dataset, omissions), None
    except (Transient, Terminal) as error:  # settled events are reported nevertheless
        coming, unread = [], error
        omissions.append(f"nothing of the topic: {error}")
    fail_point("trace.after_topic")
    letters = {
        (letter.partition, letter.offset): letter
        for letter in dead_letters.dead_letters_of(tenant, event_id, dataset)
    }
    fates = [of_letter(letter) for letter in letters.values() if letter.resolution != "landed"]
    for owned in registry.list_datasets(tenant):
        if dataset in (None, owned.slug) and (fate := _landed_fate(tenant, owned, event_id, day, omissions)):
            fates.append(replace(fate, dead_letter=letters.get(fate.place) if fate.place else None))
    settled = {fate.place for fate in fates}
    fates += [fate for fate in coming if fate.place not in settled]
    if not fates and unread is not None:
        raise unread
    if not fates:
        about = {"event": event_id, "tenant": tenant.slug}
        if dataset is not None:
            about["dataset"] = registry.find_dataset(tenant, dataset).slug
        beyond = f" ({'; '.join(omissions)})" if omissions else ""
        problem = f"no such event was accepted, or it is older than what is remembered{beyond}"
        fix = "Compare the id with what the sender sent; dead letters that are not JSON have no id"
        raise NotFound(problem, fix=fix, **about)
    return Trace(ordered(fates), tuple(omissions))


def by_place(tenant: Tenant, partition: int, offset: int) -> Trace:
    """Find the event at a position of the tenant's topic, by Pulse's offsets.

    Raises:
        NotFound: there is no event at this position yet, or no such partition.
        Transient, Terminal: as `by_id`.
    """
    omissions: list[str] = []
    positions = ledger.positions(tenant)
    if partition not in positions:
        raise NotFound("the topic has no such partition", tenant=tenant.slug, partition=partition)
    place = ledger.place(tenant, partition, offset)
    if place is None:
        if offset >= topic.ends(tenant, positions)[partition]:
            raise NotFound(
                "no event was accepted at this offset yet",
                tenant=tenant.slug,
                partition=partition,
                offset=offset,
            )
        fate = _unsettled_fate(partition, offset, None)
    else:
        fate = _planned_fate(tenant, place, partition, offset, omissions)
    return Trace((fate,), tuple(omissions))


def _find_waiting(tenant: Tenant, event_id: str, dataset: str | None, omissions: list[str]) -> list[Fate]:
    positions = ledger.positions(tenant)
    waiting = topic.waiting(tenant, positions, event_id)
    if waiting.read < waiting.count:
        omissions.append(f"the latest {waiting.read:,} of {waiting.count:,} events that are not settled")
    fates = []
    for message, named in waiting.matches:
        if dataset not in (None, named):
            continue
        place = ledger.place(tenant, message.partition, message.offset)
        if place is None or place.settled_at is None:  # else it settled meanwhile: the steps below find it
            fates.append(_unsettled_fate(message.partition, message.offset, place, message, named))
    return fates


def _unsettled_fate(
    partition: int,
    offset: int,
    place: Place | None,
    message: Message | None = None,
    dataset: str | None = None,
) -> Fate:
    """Fate of an accepted event that waits in the topic, or in the batch of its place."""
    waits = "it waits in the topic for the next batch"
    detail = f"batch {place.batch_id} has it and is not settled" if place else waits
    return Fate(
        state=FateState.IN_BATCH if place else FateState.WAITING,
        detail=f"accepted: {detail}",
        dataset=dataset,
        event_id=None if message is None else topic.names(message.payload)[0],
        partition=partition,
        offset=offset,
        received_at=_received_at(message),
        batch_id=place.batch_id if place else None,
    )


def _planned_fate(tenant: Tenant, place: Place, partition: int, offset: int, omissions: list[str]) -> Fate:
    """Fate of an offset that a batch has or had."""
    if place.settled_at is None:
        return _unsettled_fate(partition, offset, place)
    where = (partition, offset, None, place.batch_id, place.settled_at)
    if place.absent:
        if place.batch_id.startswith(LOSS):
            detail = "the topic no longer held it: its loss was accepted"
            return Fate(FateState.LOST, detail, None, None, *where)
        return Fate(FateState.NO_MESSAGE, "this offset holds no event", None, None, *where)
    if place.erasure_id:
        detail = f"it landed, and erasure {place.erasure_id} removed it"
        return Fate(FateState.ERASED, detail, None, None, *where, erasure_id=place.erasure_id)
    try:
        letter, _ = dead_letters.find_dead_letter(tenant, f"{partition}-{offset}")
    except NotFound:
        letter = None
    if letter is not None and letter.resolution != "landed":
        return of_letter(letter)
    if place.duplicate:
        return _duplicate_fate(tenant, place, partition, offset, omissions)
    return _fate_at_offset(tenant, place, partition, offset, omissions, letter)


def _landed_fate(
    tenant: Tenant, dataset: Dataset, event_id: str, day: date | None, omissions: list[str]
) -> Fate | None:
    """Fate of the landed event with this id in a dataset; None if there is none."""
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id, one_snapshot=True) as connection:
        run = claim_runs.run_with(connection, dataset, event_id)
    before = max(run.ends) if run is not None else ledger.claims_from(tenant)
    if dataset.of_entities:  # ids of entities are not claimed
        before = AFTER_ALL
    if not before:
        return None
    search = rows.with_id(tenant, dataset, event_id, before, day)
    if search.row is not None:
        return _row_fate(tenant, dataset, search.row)
    _note_omission(search, dataset, omissions)
    if run is None:
        return None
    if not search.complete:
        detail = "it landed; its row is in a file that was not searched"
    elif day is not None:
        detail = "it landed; its row is of another day"
    elif ledger.erased_from(tenant, dataset.dataset_id):
        return Fate(FateState.ERASED, "it landed, and an erasure removed it", dataset.slug, event_id)
    else:
        detail = "it landed, and its row is gone: another writer removed it from the table"
    return Fate(FateState.LANDED, detail, dataset.slug, event_id)


def _note_omission(search: Search, dataset: Dataset, omissions: list[str]) -> None:
    if not search.complete:
        omissions.append(
            f"of {dataset.slug} the latest {search.read:,} of {search.candidates:,} files that may have it: "
            "name the day of its timestamp to search those of that day"
        )


def _row_fate(tenant: Tenant, dataset: Dataset, row: FoundRow) -> Fate:
    snapshot_id, landed_at, rebuilds = ledger.landing(tenant, row.batch_id, dataset.dataset_id, row.day)
    location = Row(
        day=row.day,
        timestamp=row.timestamp,
        schema_version=row.schema_version,
        file=row.file,
        snapshot_id=snapshot_id,
        landed_at=landed_at,
        rebuilds=rebuilds,
        trace_id=row.trace_id,
    )
    detail = f"it landed: a row of {dataset.slug}, day {row.day}"
    return Fate(
        state=FateState.LANDED,
        detail=detail,
        dataset=dataset.slug,
        event_id=row.event_id,
        partition=row.partition,
        offset=row.offset,
        received_at=row.received_at,
        batch_id=row.batch_id,
        settled_at=landed_at,
        row=location,
    )


def _duplicate_fate(tenant: Tenant, place: Place, partition: int, offset: int, omissions: list[str]) -> Fate:
    """Fate of a duplicate, with the event that it copies."""
    message = _read_raw_event(tenant, place, partition, offset, omissions)
    event_id, slug = topic.names(message.payload) if message else (None, None)
    dataset = next((dataset for dataset in registry.list_datasets(tenant) if dataset.slug == slug), None)
    original = _landed_fate(tenant, dataset, event_id, None, omissions) if dataset and event_id else None
    named = original is not None and original.offset is not None
    copied_position = f"{original.partition}-{original.offset}" if original and named else None
    return Fate(
        state=FateState.DUPLICATE,
        detail=f"a copy: the event at {copied_position} has its id, and landed"
        if copied_position
        else "a copy of an event that landed",
        dataset=slug,
        event_id=event_id,
        partition=partition,
        offset=offset,
        received_at=_received_at(message),
        batch_id=place.batch_id,
        settled_at=place.settled_at,
        row=original.row if original else None,
        copy_of=copied_position,
    )


def _read_raw_event(
    tenant: Tenant, place: Place, partition: int, offset: int, omissions: list[str]
) -> Message | None:
    """Read the event from the raw zone."""
    remaining = MAX_RAW_BYTES
    for path, start, length in ledger.raw_parts(tenant, place.batch_id):
        remaining -= length
        if remaining < 0:
            omissions.append(f"{MAX_RAW_BYTES >> 20} MB of the raw objects of batch {place.batch_id}")
            return None
        with contextlib.suppress(FileGone), store_errors_explained():
            if (message := raw_zone.find(raw_zone.part(path, start, length), partition, offset)) is not None:
                return message
    return None


def _fate_at_offset(
    tenant: Tenant, place: Place, partition: int, offset: int, omissions: list[str], letter: DeadLetter | None
) -> Fate:
    """Fate of a landed event, with its row if that can be found."""
    landed_in = ledger.slugs(tenant, place.batch_id)
    for dataset in registry.list_datasets(tenant):
        if dataset.slug in landed_in or letter is not None:
            search = rows.at(tenant, dataset, partition, offset)
            if search.row is not None:
                return replace(_row_fate(tenant, dataset, search.row), dead_letter=letter)
            _note_omission(search, dataset, omissions)
    return Fate(
        state=FateState.LANDED,
        detail="it landed; its row is not in a table of today: was its dataset deleted?",
        partition=partition,
        offset=offset,
        batch_id=place.batch_id,
        settled_at=place.settled_at,
        dead_letter=letter,
    )


def _received_at(message: Message | None) -> datetime | None:
    return None if message is None else datetime.fromtimestamp(message.received_ms / 1000, UTC)
