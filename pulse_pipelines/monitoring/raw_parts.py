"""Parts of the raw zone: each is an object's gzip member, with as many lines as were registered."""

from dataclasses import dataclass
from datetime import date
from uuid import UUID

from pulse_pipelines.tables import raw_zone
from pulse_resources import postgres

PARTS = """
SELECT path, start, bytes, events, slug, day FROM raw_objects WHERE tenant_id = %s AND removed_at IS NULL
ORDER BY random() LIMIT %s
"""
STANDS = """
SELECT FROM raw_objects WHERE tenant_id = %s AND path = %s AND start = %s AND bytes = %s AND events = %s
    AND removed_at IS NULL
"""


@dataclass(frozen=True)
class DamagedPart:
    """A part from which a day cannot be rebuilt."""

    path: str
    slug: str
    day: date
    events: int
    """Lines that are registered."""
    why: str


def find_damaged(tenant_id: UUID, most: int | None = None) -> list[DamagedPart]:
    """Read parts of a tenant's raw zone, and return those that are gone, garbled or short of a line.

    Args:
        most: parts that are read, drawn at random; None: all.

    Raises:
        OSError: the object store does not answer.
    """
    with postgres.tenant_transaction("pulse_pipeline", tenant_id) as connection:
        parts = connection.execute(PARTS, [tenant_id, most]).fetchall()
    damaged = []
    for path, start, size, events, slug, day in parts:
        why = _damage(path, start, size, events)
        if why and _is_registered(tenant_id, [path, start, size, events]):
            damaged.append(DamagedPart(path, slug, day, events, why))
    return damaged


def _damage(path: str, start: int, size: int, events: int) -> str | None:
    try:
        packed = raw_zone.part(path, start, size)
    except FileNotFoundError:
        return "the object is gone"
    if len(packed) < size:
        return f"the object ends {size - len(packed)} bytes before the end of the part"
    try:
        count = sum(1 for _ in raw_zone.unpack(packed))
    except OSError as error:
        return f"the part is damaged: {error}"
    return None if count == events else f"the part has {count} lines"


def _is_registered(tenant_id: UUID, part: list[object]) -> bool:
    """Whether a part is registered still: an erasure or retention may have removed it meanwhile."""
    with postgres.tenant_transaction("pulse_pipeline", tenant_id) as connection:
        return connection.execute(STANDS, [tenant_id, *part]).fetchone() is not None
