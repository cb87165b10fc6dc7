"""Shapes: fingerprints of a table's form, which show that rows may differ without a logged change."""

from collections.abc import Collection
from typing import Any

import psycopg

from pulse_pipelines.pipes.postgres.tables import Table

# What changes rows without a message: another file (the table was rewritten), other columns, another key, the
# name of a value of an enum, a column of a composite type, the expression of a virtual column, the currency
# of money. A partitioned table has no file, and another one may have taken its name. A range has its
# multirange since Postgres 14: as JSON it lacks the member before.
_SHAPE = """
WITH RECURSIVE types (oid) AS (
    SELECT atttypid FROM pg_attribute WHERE attrelid = to_regclass(%(name)s) AND attnum > 0
    UNION
    SELECT inner_one.oid FROM types t CROSS JOIN LATERAL (
        SELECT typbasetype FROM pg_type b WHERE b.oid = t.oid
        UNION ALL SELECT typelem FROM pg_type b WHERE b.oid = t.oid
        UNION ALL SELECT rngsubtype FROM pg_range r
            WHERE t.oid IN (r.rngtypid, (to_jsonb(r) ->> 'rngmultitypid')::oid)
        UNION ALL SELECT a.atttypid FROM pg_type b JOIN pg_attribute a ON a.attrelid = b.typrelid
            WHERE b.oid = t.oid AND b.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped
    ) inner_one (oid) WHERE inner_one.oid <> 0)
SELECT md5(concat_ws(' ', coalesce(pg_relation_filenode(c.oid), c.oid),
    (SELECT string_agg(
            concat_ws(' ', a.attnum, a.attname, a.atttypid, a.atttypmod, a.attcollation), ','
            ORDER BY a.attnum)
        FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
    (SELECT i.indkey::text FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary),
    (SELECT string_agg(concat_ws(' ', e.oid, e.enumlabel), ',' ORDER BY e.oid)
        FROM pg_enum e JOIN types t ON t.oid = e.enumtypid),
    (SELECT string_agg(concat_ws(' ', b.oid, a.attnum, a.atttypid), ',' ORDER BY b.oid, a.attnum)
        FROM types t JOIN pg_type b ON b.oid = t.oid AND b.typtype = 'c'
        JOIN pg_attribute a ON a.attrelid = b.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
    (SELECT string_agg(pg_get_expr(d.adbin, d.adrelid), ',' ORDER BY a.attnum)
        FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        WHERE a.attrelid = c.oid AND a.attgenerated = 'v'),
    (SELECT current_setting('lc_monetary') FROM types t WHERE t.oid = 'money'::regtype)))
FROM pg_class c WHERE c.oid = to_regclass(%(name)s)
"""
# Partitions; later ones, or what they are part of, were attached since, by the transaction that did so. The
# first file of a table has its number: it got another one when its row in pg_class last changed, or before.
_PARTITIONS = """
WITH RECURSIVE tree (oid, is_later) AS (
    SELECT to_regclass(%(name)s)::oid, false
    UNION ALL
    SELECT i.inhrelid, t.is_later OR age(i.xmin) BETWEEN 0 AND age(%(since)s::text::xid)
    FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid)
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), t.is_later, c.relkind = 'r'
    AND c.relfilenode <> c.oid AND age(c.xmin) BETWEEN 0 AND age(%(since)s::text::xid)
FROM tree t JOIN pg_class c ON c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace
"""


def shape(source: "psycopg.Connection[Any]", name: str) -> str:
    """The fingerprint of the form of a table, by its quoted name; empty if it does not exist."""
    row = source.execute(_SHAPE, {"name": name}).fetchone()
    return "" if row is None else str(row[0])


def moment(source: "psycopg.Connection[Any]", table: Table) -> str:
    """A transaction's id, modulo 2^32, before which all have ended; empty if the table has no partitions."""
    if not table.partitioned:
        return ""
    ((number,),) = source.execute("SELECT txid_snapshot_xmin(txid_current_snapshot())").fetchall()
    return str(number % 2**32)


def changed_partitions(
    source: "psycopg.Connection[Any]", table: Table, since: str
) -> tuple[Collection[str], bool]:
    """The partitions that were attached to a table since a `moment`, and whether others may have other rows.

    They have after a truncation or a rewrite, which the shape of the table does not show.

    Args:
        since: empty: the table had no partitions.
    """
    if not table.partitioned or not since:
        return (), False
    partitions = source.execute(_PARTITIONS, {"name": table.name, "since": since}).fetchall()
    return (
        {part for part, is_later, _ in partitions if is_later},
        any(is_rewritten and not is_later for _, is_later, is_rewritten in partitions),
    )
