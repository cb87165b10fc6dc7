"""Slots: change capture from a source's log, by a logical replication slot and a publication.

The slot is only peeked at, and advanced once the changes have settled: a run that dies is repeated.
Only the keys of changes are used. The rows themselves are read from the table, at a later moment: so one rule
converts a source's types in every mode, and values that the log leaves out (unchanged TOAST values) are
present.

A place in a log means something only in that log, so a position also identifies it. Whatever could have
skipped a change stops the pipe; what changes rows without a message (the table was rewritten, or has other
columns) makes the next run read all of them.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg

from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.pipes.postgres import publications, sessions, slot_creation
from pulse_pipelines.pipes.postgres.pgoutput import decoded
from pulse_pipelines.pipes.postgres.places import Place, Slot, SlotRead
from pulse_pipelines.pipes.postgres.tables import Table
from pulse_resources.errors import Conflict, Transient, UserError
from pulse_resources.process.faults import fail_point

MOST = 500_000
"""Messages per run, of which the keys are kept; it continues to the end of the last one's transaction."""
FETCHED = 2_000
"""Messages fetched at a time."""
LONGEST = 63
"""Longest name of a slot in bytes."""
LEAST_MOVED = 65_536
"""Bytes of log for which a quiet table's position moves on: to mark it writes a few hundred, too."""
LIMITS = "(max_slot_wal_keep_size, or idle_replication_slot_timeout)"

# The name of a segment of the log begins with the timeline, which a fail-over or a restore changes.
FACTS = """
SELECT system_identifier::text, substr(pg_walfile_name(pg_current_wal_flush_lsn()), 1, 8),
    pg_current_wal_flush_lsn()::text
FROM pg_control_system()
"""
SLOT = """
SELECT database = current_database() AND plugin = 'pgoutput', coalesce(wal_status, ''),
    confirmed_flush_lsn <= %(lsn)s::pg_lsn, active,
    coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint
FROM pg_replication_slots WHERE slot_name = %(name)s
"""
BEYOND = "SELECT %s::pg_lsn - %s::pg_lsn"
PEEK = """
SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, %s,
    'proto_version', '1', 'publication_names', %s)
"""
ANY = f"SELECT EXISTS ({PEEK})"
ADVANCE = "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)"


def slot_name(tenant: Tenant, definition: Definition) -> str:
    """The name of a pipe's slot and publication."""
    name = f"pulse_{tenant.tenant_id.hex[:12]}_{definition.pipe}"
    if len(name) <= LONGEST:
        return name
    return f"{name[:46]}_{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"


def begin(address: str, tenant: Tenant, definition: Definition, table: Table) -> Place:
    """Create or replace the publication and the slot of a pipe; returns the place from which it has changes.

    What the log has before the place is seen by every snapshot that is taken afterwards.

    Raises:
        UserError: the source's log does not contain changes, or the source has no slot left.
        Transient: a transaction does not end.
    """
    name, part = slot_name(tenant, definition), table.parts[0]
    with _connected(address, definition, name) as source:
        system, timeline, _ = _facts(source, definition)
        publications.check(source, definition, table)
        _remove(source, name)
        publications.publish(source, definition, name, part)
        fail_point("pipe.before_slot")
        lsn = slot_creation.create(source, definition, name)
        fail_point("pipe.slot_made")
        try:
            slot_creation.wait_for_writers(source, definition, part)
        except Transient:
            # Until the next run, which may be far, the slot would make the source keep its log.
            _remove(source, name)
            raise
        published = publications.published(source, name, part)
        mark = publications.mark(source, name)
        return Place(system, timeline, lsn, str(published.publication), published.shape, mark)


def remove(address: str, tenant: Tenant, definition: Definition) -> None:
    """Remove what `begin` created: a slot without a reader makes the source keep its log permanently."""
    name = slot_name(tenant, definition)
    with _connected(address, definition, name) as source:
        _remove(source, name)


def _remove(source: "psycopg.Connection[Any]", name: str) -> None:
    source.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [name]
    )
    publications.drop(source, name)


def spare(source: "psycopg.Connection[Any]", tenant: Tenant, definition: Definition) -> None:
    """Drop a publication by which the source refuses changes of its table.

    Raises:
        Conflict: it was dropped.
    """
    name = slot_name(tenant, definition)
    if not publications.is_harmful(source, name):
        return
    with publications.rights_explained(source, definition, name):
        publications.drop(source, name)
    raise Conflict(
        "the table has lost its replica identity: it is no longer published, so that it can be changed",
        fix=f"ALTER TABLE ... REPLICA IDENTITY FULL, then: pulse pipe reset {tenant.slug} {definition.pipe}",
        tenant=tenant.slug,
        pipe=definition.pipe,
    )


def read_changes(
    address: str, tenant: Tenant, definition: Definition, table: Table, place: Place
) -> SlotRead:
    """Read the changes since a place up to which everything has settled.

    Raises:
        Conflict: the place is of another log, or the source has discarded its log.
    """
    name, part = slot_name(tenant, definition), table.parts[0]
    moment = datetime.now(UTC)
    with _opened(address, tenant, definition, part, place) as (source, _, flushed, published):
        # A cursor: a transaction may be larger than our memory.
        with source.transaction(), source.cursor("changes") as cursor:
            cursor.itersize = FETCHED
            cursor.execute(PEEK, [name, flushed, MOST, name], binary=True)
            changes = decoded((bytes(data) for (data,) in cursor), table.key, published.oid)
        mark = publications.mark(source, name, place.mark)
    changes.whole |= published.shape != place.shape
    after = place._replace(lsn=flushed, shape=published.shape, mark=mark)
    if changes.messages >= MOST and changes.end and changes.committed_at:  # there may be more
        after, moment = after._replace(lsn=changes.end), min(moment, changes.committed_at)
    return SlotRead(changes, after, moment, place.lsn)


def quiet_until(
    address: str, tenant: Tenant, definition: Definition, table: Table, place: Place
) -> tuple[Slot, Place | None]:
    """Read how much of its log the source keeps, and up to where the table has not changed since a place.

    Returns:
        The slot, and a later place, or the same if the log has hardly grown; None if there are changes, which
        a run has to read.

    Raises:
        Conflict: the place is of another log, or the source has discarded its log.
    """
    name = slot_name(tenant, definition)
    with _opened(address, tenant, definition, table.parts[0], place) as (source, slot, flushed, published):
        if published.shape != place.shape:
            return slot, None
        ((changed,),) = source.execute(ANY, [name, flushed, 1, name]).fetchall()
        if changed:
            return slot, None
        ((ahead,),) = source.execute(BEYOND, [flushed, place.lsn]).fetchall()
        if ahead < LEAST_MOVED:
            return slot, place
        return slot, place._replace(lsn=flushed, mark=publications.mark(source, name, place.mark))


def settled(address: str, tenant: Tenant, definition: Definition, place: Place) -> None:
    """Let the source discard its log up to a place up to which everything has settled."""
    name = slot_name(tenant, definition)
    with _connected(address, definition, name) as source:
        source.execute(ADVANCE, [name, place.lsn])


@contextmanager
def _opened(
    address: str, tenant: Tenant, definition: Definition, part: str, place: Place
) -> "Iterator[tuple[psycopg.Connection[Any], Slot, str, publications.Published]]":
    """Connect to a source whose slot continues from a place.

    Yields:
        The connection, the slot, the LSN up to which the log is written, and how the table is published.
    """
    name = slot_name(tenant, definition)

    def stopped(why: str) -> Conflict:
        return Conflict(
            f"{why}; nothing was skipped, and nothing is read",
            fix=f"To read all rows, with another slot: pulse pipe reset {tenant.slug} {definition.pipe}",
            tenant=tenant.slug,
            pipe=definition.pipe,
            slot=name,
        )

    with _connected(address, definition, name) as source:
        system, timeline, flushed = _facts(source, definition)
        row = source.execute(SLOT, {"lsn": place.lsn, "name": name}).fetchone()
        published = publications.published(source, name, part)
        ((ahead,),) = source.execute(BEYOND, [place.lsn, flushed]).fetchall()
        why = None
        if system != place.system:
            why = "the source is another database system than before"
        elif timeline != place.timeline:
            why = "the source failed over, or was restored: its log took another course"
        elif ahead > 0:
            why = "the source's log ends before what has settled: it was restored from an earlier state"
        elif row is None:
            why = "the slot is gone: it was dropped, or the source failed over to a system without it"
        elif row[1] == "lost":
            why = f"the source has removed the slot's log {LIMITS}"
        elif row[0] is not True or row[2] is not True:
            why = "the slot was created again, or read by another client: changes are missing in it"
        elif published.publication != place.published:
            why = "the publication was changed, or the table was created again: changes are missing in it"
        elif place.mark and not publications.marked(source, name, place.mark):
            why = (
                "the mark at the publication (its comment) is another: the source was restored from a copy"
                " of an earlier time, and its log took another course"
            )
        if why is not None or row is None:
            raise stopped(str(why))
        if row[3]:
            raise _in_use(tenant, definition)
        try:
            source.execute(ADVANCE, [name, place.lsn])  # settled changes are no longer needed
            fail_point("pipe.advanced")
            yield source, Slot(row[4], row[1]), flushed, published
        except psycopg.errors.ObjectNotInPrerequisiteState:  # meanwhile
            raise stopped(f"the source has removed the slot's log {LIMITS}") from None
        except psycopg.errors.ObjectInUse:
            raise _in_use(tenant, definition) from None


@contextmanager
def _connected(address: str, definition: Definition, name: str) -> "Iterator[psycopg.Connection[Any]]":
    with sessions.connect(address) as source, publications.rights_explained(source, definition, name):
        yield source


def _in_use(tenant: Tenant, definition: Definition) -> Transient:
    return Transient(
        "another session reads the slot: a run that was killed a moment ago, or another program",
        fix="It is tried again. If it stays, see active_pid in the source's pg_replication_slots",
        tenant=tenant.slug,
        pipe=definition.pipe,
    )


def _facts(source: "psycopg.Connection[Any]", definition: Definition) -> tuple[str, str, str]:
    ((standby,),) = source.execute("SELECT pg_is_in_recovery()").fetchall()
    if standby:
        raise UserError(
            "the source is a standby: changes are captured from the primary",
            fix="Let the connection string name the primary: target_session_attrs=read-write",
            pipe=definition.pipe,
        )
    ((system, timeline, flushed),) = source.execute(FACTS).fetchall()
    return system, timeline, flushed
