"""Kinds of a sink's columns: what `texts.text` needs of their types, in domains, arrays and composites."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from pulse_pipelines.pipes.sinks.texts import ARRAY, COMPOSITE

# A type, and all that its values have inside. A range has its multirange since Postgres 14: as JSON it lacks
# the member before.
TYPES = """
WITH RECURSIVE types (oid) AS (
    SELECT unnest(%s::oid[])
    UNION
    SELECT inside.oid FROM types t CROSS JOIN LATERAL (
        SELECT unnest(ARRAY[typbasetype, typelem]) FROM pg_type WHERE oid = t.oid
        UNION ALL SELECT rngsubtype FROM pg_range r
            WHERE t.oid IN (r.rngtypid, (to_jsonb(r) ->> 'rngmultitypid')::oid)
        UNION ALL SELECT a.atttypid FROM pg_type b JOIN pg_attribute a ON a.attrelid = b.typrelid
            WHERE b.oid = t.oid AND b.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped
    ) inside (oid) WHERE inside.oid <> 0)
SELECT t.oid::bigint, t.typname, CASE t.typtype WHEN 'd' THEN t.typbasetype END::bigint, t.typtypmod,
    CASE t.typcategory WHEN 'A' THEN t.typelem END::bigint, r.rngsubtype::bigint,
    CASE t.typtype WHEN 'c' THEN coalesce((
        SELECT json_agg(json_build_array(a.atttypid::bigint, a.atttypmod) ORDER BY a.attnum)
        FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped), '[]') END
FROM types JOIN pg_type t USING (oid)
LEFT JOIN pg_range r ON t.oid IN (r.rngtypid, (to_jsonb(r) ->> 'rngmultitypid')::oid)
"""
INTERVAL = "interval"
FORMATTED = "SELECT format_type('interval'::regtype, %s)"
RANGES = {"date": "daterange", "timestamp": "tsrange", "timestamptz": "tstzrange"}
"""Ranges whose bounds Postgres would cut, by the type of these."""


@dataclass(frozen=True)
class _Type:
    name: str
    base: int | None
    """The type beneath a domain."""
    modifier: int
    item: int | None
    """The type of an array's elements."""
    bound: int | None
    """The type of the bounds of a range, or multirange."""
    fields: Sequence[tuple[int, int]] | None
    """Types and modifiers of a composite's fields."""


class ColumnKinds:
    """The kinds of some types.

    Args:
        oids: of the types.
    """

    def __init__(self, connection: "psycopg.Connection[Any]", oids: Sequence[int]) -> None:
        self._connection = connection
        rows = connection.execute(TYPES, [list(oids)]).fetchall()
        self._types = {oid: _Type(*row) for oid, *row in rows}

    def of(self, oid: int, modifier: int) -> str:
        """The kind of a type, as `texts.text` takes it, with its modifier: of an interval its fields."""
        type_ = self._types[oid]
        if type_.base is not None:
            return self.of(type_.base, type_.modifier)
        if type_.item is not None:
            return f"{ARRAY} {self.of(type_.item, modifier)}"
        if type_.fields is not None:
            return f"{COMPOSITE} {json.dumps([self.of(*field) for field in type_.fields])}"
        if type_.bound is not None:
            return RANGES.get(self.of(type_.bound, -1), type_.name)
        if type_.name == INTERVAL:
            ((name,),) = self._connection.execute(FORMATTED, [modifier]).fetchall()
            return str(name)
        return type_.name
