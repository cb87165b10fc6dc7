"""Change capture: the changed rows of a table, from its source's log by a logical replication slot.

The slot is only peeked at, and advanced once the found changes have settled: a run that dies is repeated.
Only the keys of changes are used. The rows themselves are read from the table, at a later moment: so one rule
converts a source's types in every mode, and values that the log leaves out (unchanged TOAST values) are
present.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.pipes import sources
from pulse_pipelines.pipes.sources import Table
from pulse_resources.errors import Conflict, Terminal, UserError

Key = tuple[str, ...]
MOST = 100_000
"""Changes per run; the run continues to the end of the transaction that contains the last of them."""

FACTS = """
SELECT system_identifier::text, current_setting('wal_level'), pg_current_wal_flush_lsn()::text,
    current_database()
FROM pg_control_system()
"""
IDENTITY = "SELECT relreplident::text FROM pg_class WHERE oid = to_regclass(%s)"
SLOT = """
SELECT database, plugin, wal_status, confirmed_flush_lsn <= %s::pg_lsn, active FROM pg_replication_slots
WHERE slot_name = %s
"""
CREATE_SLOT = "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')"
PEEK = """
SELECT lsn::text, data FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, %s,
    'proto_version', '1', 'publication_names', %s)
"""
ADVANCE = "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)"


@dataclass
class Found:
    """Changes found in a slot."""

    upto: str
    """LSN up to which the slot was read: the end of a transaction."""
    keys: set[Key] = field(default_factory=set)
    """Keys of rows that changed."""
    truncated: bool = False


def named(tenant: Tenant, said: Definition) -> str:
    """The name of a pipe's slot and publication."""
    return f"pulse_{tenant.tenant_id.hex[:12]}_{said.pipe}"[:63]


def begin(address: str, tenant: Tenant, said: Definition, table: Table) -> str:
    """Create the publication and the slot of a pipe anew; returns the LSN from which on changes are captured.

    Raises:
        UserError: the source's log does not contain changes.
    """
    name, part = named(tenant, said), table.parts[0]
    with sources.connect(address) as source:
        system, level, *_ = source.execute(FACTS).fetchall()[0]
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
        ((lsn,),) = source.execute(CREATE_SLOT, [name]).fetchall()
    return f"{system} {lsn}"


def remove(address: str, tenant: Tenant, said: Definition) -> None:
    """Remove what `begin` created: a slot without a reader makes the source keep its log for ever."""
    with sources.connect(address) as source:
        _remove(source, named(tenant, said))


def _remove(source: "psycopg.Connection[Any]", name: str) -> None:
    source.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [name]
    )
    source.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))


def look(address: str, tenant: Tenant, said: Definition, table: Table, position: str) -> tuple[Found, str]:
    """Read the changes since a position, up to which everything has settled; also returns the next position.

    Raises:
        Conflict: the position belongs to another slot, or the source has discarded its log.
    """
    name, (system, lsn) = named(tenant, said), position.split()
    with sources.connect(address) as source:
        now, _, flushed, database = source.execute(FACTS).fetchall()[0]
        slot = source.execute(SLOT, [lsn, name]).fetchone()
        why = None
        if now != system:
            why = "the source is another database system than before"
        elif slot is None:
            why = "the slot is gone: somebody dropped it, or the source failed over to a system without it"
        elif slot[2] == "lost":
            why = "the source has thrown the slot's log away (max_slot_wal_keep_size)"
        elif slot[0] != database or slot[1] != "pgoutput" or slot[3] is not True:
            why = "the slot was made anew, or read by somebody else: changes are missing in it"
        elif slot[4]:
            why = "somebody else reads the slot"
        if why is not None:
            raise Conflict(
                f"{why}; nothing was skipped, and nothing is brought",
                fix=f"To bring all rows anew, with another slot: pulse pipe reset {tenant.slug} {said.pipe}",
                tenant=tenant.slug,
                pipe=said.pipe,
                slot=name,
            )
        source.execute(ADVANCE, [name, lsn])  # settled changes are no longer needed
        messages = source.execute(PEEK, [name, flushed, MOST, name], binary=True)
        found = decoded((bytes(data) for _, data in messages), table.key, flushed)
    return found, f"{system} {found.upto}"


def decoded(messages: Iterable[bytes], key: Key, flushed: str) -> Found:
    """Decode the keys in messages of pgoutput (protocol 1).

    Args:
        flushed: end position if there are no messages.

    Raises:
        Terminal: a message lacks the key of its row.
    """
    found, places = Found(flushed), dict[int, list[int]]()
    for message in messages:
        kind, read = message[:1], Reader(message, 1)
        if kind == b"R":
            relation, columns = read.relation()
            places[relation] = [columns.index(name) for name in key]
        elif kind in b"IUD":
            relation = read.number(">I")
            for values in read.tuples():
                found.keys.add(_key([values[place] for place in places[relation]]))
        elif kind == b"T":
            found.truncated = True
        elif kind == b"C":
            read.skip(9)
            end = read.number(">Q")
            found.upto = f"{end >> 32:X}/{end & 0xFFFFFFFF:X}"
    return found


def _key(values: list[str | None]) -> Key:
    if None in values:
        raise Terminal(
            "the source's log has a change without the key of its row",
            fix="Bring all rows anew: pulse pipe reset",
        )
    return tuple(str(value) for value in values)


class Reader:
    """Cursor over the bytes of a message."""

    def __init__(self, message: bytes, at: int) -> None:
        self._message, self._at = message, at

    def number(self, form: str) -> int:
        """Read a number by a `struct` format."""
        (found,) = struct.unpack_from(form, self._message, self._at)
        self._at += struct.calcsize(form)
        return int(found)

    def skip(self, count: int) -> None:
        """Skip bytes."""
        self._at += count

    def text(self) -> str:
        """Read a zero-terminated text."""
        end = self._message.index(0, self._at)
        found = self._message[self._at : end].decode()
        self._at = end + 1
        return found

    def relation(self) -> tuple[int, list[str]]:
        """Read a table's OID and the names of its columns."""
        number = self.number(">I")
        self.text(), self.text()
        self.skip(1)
        columns = []
        for _ in range(self.number(">H")):
            self.skip(1)
            columns.append(self.text())
            self.skip(8)
        return number, columns

    def tuples(self) -> Iterator[list[str | None]]:
        """Read the rows of a change: the old one, if it is sent, and the new one."""
        while self._at < len(self._message):
            self.skip(1)
            values: list[str | None] = []
            for _ in range(self.number(">H")):
                kind = self.number(">B")
                if kind != ord("t"):
                    values.append(None)
                    continue
                length = self.number(">I")
                values.append(self._message[self._at : self._at + length].decode())
                self.skip(length)
            yield values
