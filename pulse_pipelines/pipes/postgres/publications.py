"""Publications: they make a source's log show how a table changes, without harm to its writers.

A table that is published must have a replica identity: without one Postgres refuses its updates and
deletions, those of the application. So nothing is published before that is sure, and a publication whose
table has lost its identity is dropped.

A publication also bears the pipe's mark: a random text, renewed with each position and kept with it. A source
that lacks the mark was restored from a copy of an earlier time, even if its log has grown beyond the position
since, and everything else is as it was.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
from psycopg import sql

from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.pipes.postgres import shapes
from pulse_pipelines.pipes.postgres.tables import Table
from pulse_resources.errors import Transient, UserError

# Readers and writers of rows do not hold the lock that is waited for; a standby is not waited for.
_SETTINGS = "SET LOCAL lock_timeout = '60s'; SET LOCAL synchronous_commit = local"
# Postgres checks there whether it will refuse changes. No row is changed, and no trigger runs.
_CHANGED = "EXPLAIN DELETE FROM ONLY {part} WHERE false; EXPLAIN UPDATE ONLY {part} SET {same} WHERE false"
# The columns that the log has of rows that were updated or deleted; null: none.
_IDENTITY = """
SELECT c.relreplident::text, c.relpersistence = 'p', (
    SELECT array_agg(a.attname::text) FROM pg_index i
    CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k (attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = c.oid AND k.place <= i.indnkeyatts AND i.indisvalid AND i.indimmediate
        AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END)
FROM pg_class c WHERE c.oid = to_regclass(%(part)s) OR c.oid IN (
    SELECT r.prrelid FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
    WHERE p.pubname = %(publication)s)
"""
# Any change of either row gives it another xmin.
_PUBLISHED = """
SELECT md5(concat_ws(' ', p.oid, p.xmin, r.oid, r.xmin)), r.prrelid FROM pg_publication p
JOIN pg_publication_rel r ON r.prpubid = p.oid
WHERE p.pubname = %s AND r.prrelid = to_regclass(%s)
"""
# No slot has an empty name: a role that may use slots gets that error, and others one of their rights.
_ANY_SLOT = "SELECT pg_replication_slot_advance('', '0/1')"
_REPLICATION = "ALTER ROLE ... REPLICATION"
_OWNED = "SELECT pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = %s"
_RIGHTS = """
SELECT pg_has_role(relowner, 'USAGE'), has_database_privilege(current_database(), 'CREATE')
FROM pg_class WHERE oid = to_regclass(%s)
"""
_MARKS = "SELECT coalesce(obj_description(oid, 'pg_publication'), '') FROM pg_publication WHERE pubname = %s"


def check(source: "psycopg.Connection[Any]", definition: Definition, table: Table) -> None:
    """Check that the log shows how a table changes, and that publishing it does no harm.

    Raises:
        UserError: it cannot, and why.
    """
    ((level,),) = source.execute("SELECT current_setting('wal_level')").fetchall()
    if level != "logical":
        raise UserError(
            f"the source's wal_level is {level}: its log does not show what changed",
            fix="Set wal_level = logical there, and start it again",
            pipe=definition.pipe,
        )
    ((identity, logged, columns),) = source.execute(
        _IDENTITY, {"part": table.parts[0], "publication": None}
    ).fetchall()
    if not logged:
        raise UserError(
            "the table is unlogged, or temporary: the source's log does not have it",
            fix=f"ALTER TABLE {table.parts[0]} SET LOGGED, or use mode: incremental or full",
            pipe=definition.pipe,
        )
    if identity != "f" and not set(table.key) <= set(columns or ()):
        why = "its replica identity does not have all columns of the primary key"
        if columns is None:
            why = "its primary key is deferrable" if identity == "d" else "it has no replica identity"
        raise UserError(
            f"the source's log does not show which rows were changed or deleted: {why}",
            fix=f"ALTER TABLE {table.parts[0]} REPLICA IDENTITY FULL; or, of a primary key that is not "
            "deferrable, REPLICA IDENTITY DEFAULT; or use mode: incremental or full",
            pipe=definition.pipe,
        )
    if missing := _missing_rights(source, table.parts[0]):
        raise UserError(
            "the role may not capture changes of the table",
            fix=f"{'; '.join(missing)}; or use mode: incremental or full",
            pipe=definition.pipe,
        )


def _missing_rights(source: "psycopg.Connection[Any]", part: str) -> list[str]:
    """Statements that give a role the rights that it lacks to have a publication and a slot."""
    ((owns, publishes),) = source.execute(_RIGHTS, [part]).fetchall()
    missing = [] if owns else [f"ALTER TABLE {part} OWNER TO ..., or a role of which this one is a member"]
    missing += [] if publishes else ["GRANT CREATE ON DATABASE ... TO ..."]
    return missing if _may_use_slots(source) else [*missing, _REPLICATION]


def _may_use_slots(source: "psycopg.Connection[Any]") -> bool:
    """Whether a role may use slots, by what it can do: services let others than REPLICATION."""
    try:
        with source.transaction():
            source.execute(_ANY_SLOT)
    except psycopg.errors.InsufficientPrivilege:
        return False
    except psycopg.errors.UndefinedObject:
        pass
    return True


@contextmanager
def rights_explained(source: "psycopg.Connection[Any]", definition: Definition, name: str) -> Iterator[None]:
    """Work on a slot and a publication of this name.

    Raises:
        UserError: the role lost a right that it had when the pipe was created, and what gives it back.
    """
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        missing = [] if _may_use_slots(source) else [_REPLICATION]
        if source.execute(_OWNED, [name]).fetchone() == (False,):
            missing.append(f"ALTER PUBLICATION {name} OWNER TO ..., or a role of which this one is a member")
        raise UserError(
            f"the role may no longer capture changes of the table: {error.diag.message_primary}",
            fix="; ".join(missing) or "Give it the rights that docs/pipes.md names for mode: changes",
            pipe=definition.pipe,
        ) from None


def is_harmful(source: "psycopg.Connection[Any]", name: str) -> bool:
    """Whether Postgres refuses updates and deletions of a table because of this publication."""
    rows = source.execute(_IDENTITY, {"part": None, "publication": name}).fetchall()
    return any(identity != "f" and columns is None for identity, _, columns in rows)


def publish(source: "psycopg.Connection[Any]", definition: Definition, name: str, part: str) -> None:
    """Create a publication of a table.

    Raises:
        UserError: Postgres would refuse changes of the table from then on; nothing was published.
        Transient: another session holds a lock of the table for long.
    """
    # Of a generated column in the identity Postgres would refuse changes, unless it is published, too.
    generated = " WITH (publish_generated_columns = stored)" if source.info.server_version >= 180000 else ""
    create = sql.SQL("CREATE PUBLICATION {} FOR TABLE ONLY {}" + generated)
    try:
        with source.transaction():
            source.execute(_SETTINGS)
            source.execute(create.format(sql.Identifier(name), sql.SQL(part)))
            source.execute(sql.SQL(_CHANGED).format(part=sql.SQL(part), same=_same(source, part)))
    except psycopg.errors.LockNotAvailable:
        raise Transient(
            "the table is locked by another session", fix="It is tried again", pipe=definition.pipe
        ) from None
    except (
        psycopg.errors.ObjectNotInPrerequisiteState,
        psycopg.errors.InvalidColumnReference,
    ) as error:
        raise UserError(
            f"if published, the table could no longer be changed: {error.diag.message_detail or error}",
            fix="Nothing was published. Use mode: incremental or full",
            pipe=definition.pipe,
        ) from None


def _same(source: "psycopg.Connection[Any]", part: str) -> sql.Composable:
    """An assignment that any UPDATE of a table may have."""
    row = source.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 "
        "AND NOT attisdropped AND attgenerated = '' AND attidentity <> 'a' ORDER BY attnum LIMIT 1",
        [part],
    ).fetchone()
    return sql.SQL("{0} = {0}").format(sql.Identifier(row[0] if row else "ctid"))


def drop(source: "psycopg.Connection[Any]", name: str) -> None:
    """Drop a publication, if it is there."""
    with source.transaction():
        source.execute(_SETTINGS)
        source.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))


class Published(NamedTuple):
    """A table that is published."""

    publication: str | None
    """Fingerprint of the publication; None: it is not there, or not of this table."""
    oid: int
    """OID of the table, as the log has it."""
    shape: str
    """Fingerprint of the table's form."""


def published(source: "psycopg.Connection[Any]", name: str, part: str) -> Published:
    """How a table is published."""
    row = source.execute(_PUBLISHED, [name, part]).fetchone()
    fingerprint, oid = row or (None, 0)
    return Published(fingerprint, oid, shapes.shape(source, part))


def marked(source: "psycopg.Connection[Any]", name: str, mark: str) -> bool:
    """Whether a publication bears a mark."""
    row = source.execute(_MARKS, [name]).fetchone()
    return row is not None and mark in row[0].split()


def mark(source: "psycopg.Connection[Any]", name: str, before: str = "") -> str:
    """Give a publication a new mark, beside that of the position, which stands until a later one has settled.

    It is on the source's disk when this returns, and so is its log up to here.
    """
    token = uuid4().hex[:12]
    with source.transaction():
        source.execute(_SETTINGS)
        query = sql.SQL("COMMENT ON PUBLICATION {} IS {}")
        source.execute(query.format(sql.Identifier(name), sql.Literal(f"{before} {token}".strip())))
    return token
