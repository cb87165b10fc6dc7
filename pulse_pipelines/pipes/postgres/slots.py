"""Slots: change capture from a source's log, by a logical replication slot and a publication.

The slot is only peeked at, and advanced once the found changes have settled: a run that dies is repeated.
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
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.pipes.postgres import sessions
from pulse_pipelines.pipes.postgres.pgoutput import Found, decoded
from pulse_pipelines.pipes.postgres.tables import Table
from pulse_resources.errors import Conflict, Transient, UserError
from pulse_resources.faults import fail_point

MOST = 500_000
"""Messages per run, of which the keys are kept; it continues to the end of the last one's transaction."""
FETCHED = 2_000
"""Messages fetched at a time."""
LONGEST = 63
"""Longest name of a slot in bytes."""

# The name of a segment of the log begins with the timeline, which a fail-over or a restore changes.
FACTS = """
SELECT system_identifier::text, substr(pg_walfile_name(pg_current_wal_flush_lsn()), 1, 8),
    pg_current_wal_flush_lsn()::text, current_setting('wal_level')
FROM pg_control_system()
"""
IDENTITY = "SELECT relreplident::text FROM pg_class WHERE oid = to_regclass(%s)"
SLOT = """
SELECT database = current_database() AND plugin = 'pgoutput', coalesce(wal_status, ''),
    confirmed_flush_lsn <= %(lsn)s::pg_lsn, active,
    coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint
FROM pg_replication_slots WHERE slot_name = %(name)s
"""
# Any change of either row gives it another xmin.
PUBLISHED = """
SELECT md5(concat_ws(' ', p.oid, p.xmin, r.oid, r.xmin)) FROM pg_publication p
JOIN pg_publication_rel r ON r.prpubid = p.oid
WHERE p.pubname = %s AND r.prrelid = to_regclass(%s)
"""
# What changes rows without a message: another file (the table was rewritten), other columns, another key.
SHAPE = """
SELECT md5(concat_ws(' ', pg_relation_filenode(c.oid),
    (SELECT string_agg(concat_ws(' ', a.attnum, a.attname, a.atttypid, a.atttypmod), ',' ORDER BY a.attnum)
        FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
    (SELECT i.indkey::text FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)))
FROM pg_class c WHERE c.oid = to_regclass(%s)
"""
BEYOND = "SELECT %s::pg_lsn > %s::pg_lsn"
CREATE_SLOT = "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')"
PEEK = """
SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, %s,
    'proto_version', '1', 'publication_names', %s)
"""
ANY = f"SELECT EXISTS ({PEEK})"
ADVANCE = "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)"


class Place(NamedTuple):
    """A place in a source's log; as text the position of a pipe."""

    system: str
    timeline: str
    lsn: str
    published: str
    """Fingerprint of the publication."""
    shape: str
    """Fingerprint of the table's form, as it was when its rows were last read."""

    @classmethod
    def parse(cls, position: str) -> "Place | None":
        """Parse a position; None if it is malformed."""
        parts = position.split()
        return cls(*parts) if len(parts) == len(cls._fields) else None

    def __str__(self) -> str:
        return " ".join(self)


@dataclass(frozen=True)
class Slot:
    """A slot as the source shows it."""

    wal_bytes: int
    """Bytes of the log that the source keeps for it."""
    wal_status: str
    """By `pg_replication_slots`: reserved, extended, unreserved, or lost."""


@dataclass(frozen=True)
class Seen:
    """What a look at a slot found."""

    found: Found
    place: Place
    """The place up to which it was read."""
    as_of: datetime
    """A moment before which nothing was committed that was not found."""


def named(tenant: Tenant, said: Definition) -> str:
    """The name of a pipe's slot and publication."""
    name = f"pulse_{tenant.tenant_id.hex[:12]}_{said.pipe}"
    if len(name) <= LONGEST:
        return name
    return f"{name[:46]}_{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"


def begin(address: str, tenant: Tenant, said: Definition, table: Table) -> Place:
    """Create the publication and the slot of a pipe anew; returns the place from which on it has changes.

    Raises:
        UserError: the source's log does not contain changes.
    """
    name, part = named(tenant, said), table.parts[0]
    with sessions.connect(address) as source:
        system, timeline, _, level = _facts(source, said)
        if level != "logical":
            raise UserError(
                f"the source's wal_level is {level}: its log does not say what changed",
                fix="Set wal_level = logical there, and start it again",
                pipe=said.pipe,
            )
        ((identity,),) = source.execute(IDENTITY, [part]).fetchall()
        if identity not in ("d", "f"):
            raise UserError(
                "the source's log does not say which rows were deleted",
                fix=f"ALTER TABLE {part} REPLICA IDENTITY DEFAULT",
                pipe=said.pipe,
            )
        _remove(source, name)
        publish = sql.SQL("CREATE PUBLICATION {} FOR TABLE ONLY {}")
        source.execute(publish.format(sql.Identifier(name), sql.SQL(part)))
        fail_point("pipe.before_slot")
        ((lsn,),) = source.execute(CREATE_SLOT, [name]).fetchall()
        published, shape = _fingerprints(source, name, part)
        return Place(system, timeline, lsn, str(published), shape)


def remove(address: str, tenant: Tenant, said: Definition) -> None:
    """Remove what `begin` created: a slot without a reader makes the source keep its log for ever."""
    with sessions.connect(address) as source:
        _remove(source, named(tenant, said))


def _remove(source: "psycopg.Connection[Any]", name: str) -> None:
    source.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [name]
    )
    source.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))


def look(address: str, tenant: Tenant, said: Definition, table: Table, place: Place) -> Seen:
    """Read the changes since a place up to which everything has settled.

    Raises:
        Conflict: the place is of another log, or the source has discarded its log.
    """
    name, part = named(tenant, said), table.parts[0]
    moment = datetime.now(UTC)
    with (
        _opened(address, tenant, said, part, place) as (source, _, flushed, shape),
        source.transaction(),
        source.cursor("changes") as cursor,  # a transaction may be larger than our memory
    ):
        source.execute(sessions.SETTINGS)  # keys are as the rows' events have them
        cursor.itersize = FETCHED
        cursor.execute(PEEK, [name, flushed, MOST, name], binary=True)
        found = decoded((bytes(data) for (data,) in cursor), table.key)
    found.whole |= shape != place.shape
    if found.messages >= MOST and found.end and found.committed_at:  # there may be more
        return Seen(found, place._replace(lsn=found.end, shape=shape), min(moment, found.committed_at))
    return Seen(found, place._replace(lsn=flushed, shape=shape), moment)


def quiet_until(
    address: str, tenant: Tenant, said: Definition, table: Table, place: Place
) -> tuple[Slot, Place | None]:
    """See how much of its log the source keeps, and how far the table has not changed since a place.

    Returns:
        The slot, and a later place; None if there are changes, which a run has to bring.

    Raises:
        Conflict: the place is of another log, or the source has discarded its log.
    """
    name = named(tenant, said)
    with _opened(address, tenant, said, table.parts[0], place) as (source, slot, flushed, shape):
        if shape != place.shape:
            return slot, None
        ((changed,),) = source.execute(ANY, [name, flushed, 1, name]).fetchall()
        return slot, None if changed else place._replace(lsn=flushed)


def settled(address: str, tenant: Tenant, said: Definition, place: Place) -> None:
    """Let the source discard its log up to a place up to which everything has settled."""
    with sessions.connect(address) as source:
        source.execute(ADVANCE, [named(tenant, said), place.lsn])


@contextmanager
def _opened(
    address: str, tenant: Tenant, said: Definition, part: str, place: Place
) -> "Iterator[tuple[psycopg.Connection[Any], Slot, str, str]]":
    """Connect to a source whose slot goes on from a place.

    Yields:
        The connection, the slot, the LSN up to which the log is written, and the table's fingerprint.
    """
    name = named(tenant, said)

    def stopped(why: str) -> Conflict:
        return Conflict(
            f"{why}; nothing was skipped, and nothing is brought",
            fix=f"To bring all rows anew, with another slot: pulse pipe reset {tenant.slug} {said.pipe}",
            tenant=tenant.slug,
            pipe=said.pipe,
            slot=name,
        )

    with sessions.connect(address) as source:
        system, timeline, flushed, _ = _facts(source, said)
        row = source.execute(SLOT, {"lsn": place.lsn, "name": name}).fetchone()
        published, shape = _fingerprints(source, name, part)
        ((ahead,),) = source.execute(BEYOND, [place.lsn, flushed]).fetchall()
        why = None
        if system != place.system:
            why = "the source is another database system than before"
        elif timeline != place.timeline:
            why = "the source failed over, or was restored: its log took another course"
        elif ahead:
            why = "the source's log ends before what has settled: it was restored from an earlier state"
        elif row is None:
            why = "the slot is gone: somebody dropped it, or the source failed over to a system without it"
        elif row[1] == "lost":
            why = "the source has thrown the slot's log away (max_slot_wal_keep_size)"
        elif row[0] is not True or row[2] is not True:
            why = "the slot was made anew, or read by somebody else: changes are missing in it"
        elif published != place.published:
            why = "the publication was changed, or the table was made anew: changes are missing in it"
        if why is not None or row is None:
            raise stopped(str(why))
        if row[3]:
            raise _in_use(tenant, said)
        try:
            source.execute(ADVANCE, [name, place.lsn])  # settled changes are no longer needed
            fail_point("pipe.advanced")
            yield source, Slot(row[4], row[1]), flushed, shape
        except psycopg.errors.ObjectNotInPrerequisiteState:  # meanwhile
            raise stopped("the source has thrown the slot's log away (max_slot_wal_keep_size)") from None
        except psycopg.errors.ObjectInUse:
            raise _in_use(tenant, said) from None


def _in_use(tenant: Tenant, said: Definition) -> Transient:
    return Transient(
        "somebody reads the slot: a run that was killed a moment ago, or another program",
        fix="It is tried again. If it stays, see active_pid in the source's pg_replication_slots",
        tenant=tenant.slug,
        pipe=said.pipe,
    )


def _facts(source: "psycopg.Connection[Any]", said: Definition) -> tuple[str, str, str, str]:
    ((standby,),) = source.execute("SELECT pg_is_in_recovery()").fetchall()
    if standby:
        raise UserError(
            "the source is a standby: changes are captured from the primary",
            fix="Let the connection string name the primary: target_session_attrs=read-write",
            pipe=said.pipe,
        )
    ((system, timeline, flushed, level),) = source.execute(FACTS).fetchall()
    return system, timeline, flushed, level


def _fingerprints(source: "psycopg.Connection[Any]", name: str, part: str) -> tuple[str | None, str]:
    published = source.execute(PUBLISHED, [name, part]).fetchone()
    ((shape,),) = source.execute(SHAPE, [part]).fetchall()
    return None if published is None else str(published[0]), str(shape)
