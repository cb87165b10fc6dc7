"""A tenant's dead letters: listed with a stable cursor, counted by reason, or read one by one with payload.

The public id of a dead letter is `<partition>-<offset>`, the position of its event in the tenant's topic.
"""

import base64
import re
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import orjson

from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.domain.requests import MAX_LETTERS, LetterState
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres
from pulse_resources.errors import NotFound, UserError

FIELDS = """partition, event_offset AS "offset", dataset, event_id, reason, pointer, detail,
    octet_length(payload) AS size, received_at, settled_at, batch_id, published_at, resolution, resolved_at"""
# Items of arrays are one place: /data/items/3/price is /data/items/*/price.
PLACE = r"coalesce(regexp_replace(pointer, '/[0-9]+(?=/|$)', '/*', 'g'), '')"
MATCHES = f"""
(%(dataset)s::text IS NULL OR coalesce(dataset, '') = %(dataset)s)
AND (%(reason)s::text IS NULL OR reason = %(reason)s) AND (%(place)s::text IS NULL OR {PLACE} = %(place)s)
AND (%(since)s::timestamptz IS NULL OR settled_at >= %(since)s)
AND (%(until)s::timestamptz IS NULL OR settled_at < %(until)s)
"""
LIST = f"""
SELECT {FIELDS} FROM dead_letters WHERE {{state}} AND {MATCHES}
AND (settled_at, partition, event_offset) < (%(at)s::timestamptz, %(partition)s, %(offset)s)
ORDER BY settled_at DESC, partition DESC, event_offset DESC LIMIT %(limit)s
"""  # noqa: S608 - from constants
SUMMARY = f"""
SELECT reason, count(*) AS count, min(settled_at) AS oldest, max(settled_at) AS newest FROM dead_letters
WHERE {{state}} AND {MATCHES} GROUP BY reason ORDER BY count(*) DESC, reason
"""  # noqa: S608
# The example is the latest of its group, found in the same pass: letters of one batch have one time.
GROUPS = f"""
SELECT nullif(grouped.dataset, '') AS dataset, grouped.reason, place, count, oldest, newest,
    partition || '-' || event_offset AS example_id, detail AS example_detail
FROM (
    SELECT coalesce(dataset, '') AS dataset, reason, {PLACE} AS place, count(*) AS count,
        min(settled_at) AS oldest, max(settled_at) AS newest,
        max(ARRAY[(extract(epoch FROM settled_at) * 1000000)::bigint, event_offset, -partition]) AS latest
    FROM dead_letters WHERE {{state}} AND {MATCHES}
    GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1, 2, 3 LIMIT %(limit)s
) grouped JOIN dead_letters ON partition = -latest[3] AND event_offset = latest[2]
ORDER BY count DESC, grouped.dataset, grouped.reason, place
"""  # noqa: S608
# Where Postgres does not know yet that a tenant has many letters, it would read all of them for each group.
NO_LOOP = "SET LOCAL enable_nestloop = off"
FIND = f"""
SELECT {FIELDS}, payload FROM dead_letters WHERE partition = %s AND event_offset = %s
"""  # noqa: S608
OF_EVENT = f"""
SELECT {FIELDS} FROM dead_letters
WHERE event_id = %(event_id)s AND (%(dataset)s::text IS NULL OR dataset = %(dataset)s)
ORDER BY settled_at DESC, partition DESC, event_offset DESC LIMIT %(limit)s
"""  # noqa: S608


_STATES = {
    LetterState.OPEN: "resolution IS NULL",
    LetterState.REPLAYED: "resolution = 'replayed'",
    LetterState.DISCARDED: "resolution = 'discarded'",
    LetterState.LANDED: "resolution = 'landed'",
    LetterState.ERASED: "resolution = 'erased'",
    LetterState.ALL: "true",
}


@dataclass(frozen=True)
class Filter:
    """A filter of dead letters; fields that are None match all.

    Raises:
        UserError: a value that no dead letter can have.
    """

    dataset: str | None = None
    """The slug that the event named, whether or not there is such a dataset; empty: it named none."""
    reason: Reason | None = None
    since: datetime | None = None
    """Earliest time of settling."""
    until: datetime | None = None
    """End of the times of settling, exclusive."""
    place: str | None = None
    """JSON pointer of what is wrong, with * for numbers of items; empty: there is none."""

    def __post_init__(self) -> None:
        if self.dataset is not None and ("\0" in self.dataset or not _is_unicode(self.dataset)):
            raise UserError("no dataset can have this name")
        if self.place is not None and ("\0" in self.place or not _is_unicode(self.place)):
            raise UserError("no event can have this place")
        if any(time is not None and time.tzinfo is None for time in (self.since, self.until)):
            raise UserError("the time has no zone", fix="Add one, such as Z")

    def values(self) -> dict[str, object]:
        """The parameters of `MATCHES`."""
        reason = self.reason.value if self.reason else None
        return {
            "dataset": self.dataset,
            "reason": reason,
            "since": self.since,
            "until": self.until,
            "place": self.place,
        }


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


@dataclass(frozen=True)
class DeadLetter:
    """An event that could not land, without its bytes."""

    partition: int
    offset: int
    dataset: str | None
    event_id: str | None
    reason: str
    pointer: str | None
    detail: str
    size: int
    """Bytes of the event as it was received."""
    received_at: datetime
    settled_at: datetime
    """When its batch settled and it became a dead letter."""
    batch_id: str
    published_at: datetime | None
    resolution: str | None
    """`replayed`, `discarded`, `landed` by a backfill, `erased`, or None while it is open."""
    resolved_at: datetime | None

    @property
    def letter_id(self) -> str:
        return f"{self.partition}-{self.offset}"


class Opened(NamedTuple):
    letter: DeadLetter
    payload: bytes
    """The event as it was received, to the byte."""


class Cursor(NamedTuple):
    """Position in a listing from which the next page starts; opaque text to callers."""

    settled_at: str
    partition: int = 0
    offset: int = 0

    @classmethod
    def behind(cls, letter: DeadLetter) -> "Cursor":
        """The cursor of the page that starts after this letter."""
        return cls(letter.settled_at.isoformat(), letter.partition, letter.offset)

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Decode the text of a cursor. Raises NotFound: `text` is not a cursor."""
        try:
            parts = orjson.loads(base64.b64decode(text.encode(), altchars=b"-_", validate=True))
            settled_at, partition, offset = parts
            zoned = datetime.fromisoformat(settled_at).tzinfo is not None
            whole = type(partition) is type(offset) is int
            if zoned and whole and 0 <= partition < 2**31 and 0 <= offset < 2**63:
                return cls(settled_at, partition, offset)
        except (ValueError, TypeError):
            pass
        raise NotFound("no such cursor", fix="Start again without a cursor")

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(orjson.dumps(list(self))).decode()


@dataclass(frozen=True)
class Page:
    letters: tuple[DeadLetter, ...]
    next: str | None
    """Cursor of the next page; None on the last."""


def list_dead_letters(
    tenant: Tenant,
    where: Filter | None = None,
    *,
    state: LetterState = LetterState.OPEN,
    limit: int = 100,
    after: str | None = None,
) -> Page:
    """List a page of the tenant's dead letters, the latest first.

    Ordered by (settled_at, partition, offset): letters that arrive meanwhile do not shift pages.

    Args:
        limit: 1 to `MAX_LETTERS`.
        after: the `next` of the previous page.

    Raises:
        NotFound: no such cursor.
        UserError: the limit is not valid.
    """
    if not 0 < limit <= MAX_LETTERS:
        raise UserError(f"the limit must be 1 to {MAX_LETTERS:,}")
    begin = Cursor.parse(after) if after is not None else Cursor("infinity")
    values = (where or Filter()).values() | {"limit": limit + 1}
    values |= {"at": begin.settled_at, "partition": begin.partition, "offset": begin.offset}
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        listed = postgres.select(connection, DeadLetter, LIST.format(state=_STATES[state]), values)
    letters = tuple(listed[:limit])
    return Page(letters, str(Cursor.behind(letters[-1])) if len(listed) > limit else None)


def dead_letters_of(tenant: Tenant, event_id: str, dataset: str | None = None) -> tuple[DeadLetter, ...]:
    """The latest `MAX_LETTERS` dead letters of the tenant with this event id, in any state."""
    values = {"event_id": event_id, "dataset": dataset, "limit": MAX_LETTERS}
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return tuple(postgres.select(connection, DeadLetter, OF_EVENT, values))


@dataclass(frozen=True)
class ReasonCount:
    reason: str
    count: int
    oldest: datetime
    """When the first of them settled."""
    newest: datetime
    """When the last of them settled."""


def summary(
    tenant: Tenant, where: Filter | None = None, *, state: LetterState = LetterState.OPEN
) -> tuple[ReasonCount, ...]:
    """Count the tenant's dead letters by reason, the most frequent first."""
    values = (where or Filter()).values()
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return tuple(postgres.select(connection, ReasonCount, SUMMARY.format(state=_STATES[state]), values))


@dataclass(frozen=True)
class LetterGroup:
    """Dead letters of one dataset with one reason at one place."""

    dataset: str | None
    """None: the events named no dataset."""
    reason: str
    place: str
    """JSON pointer with * for numbers of items; empty: there is none."""
    count: int
    oldest: datetime
    """When the first of them settled."""
    newest: datetime
    example_id: str
    """Id of the latest one."""
    example_detail: str


def groups(
    tenant: Tenant, where: Filter | None = None, *, state: LetterState = LetterState.OPEN, limit: int = 100
) -> tuple[LetterGroup, ...]:
    """Group the tenant's dead letters by dataset, reason and place, the largest group first."""
    values = (where or Filter()).values() | {"limit": limit}
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        connection.execute(NO_LOOP)
        return tuple(postgres.select(connection, LetterGroup, GROUPS.format(state=_STATES[state]), values))


_ID = re.compile(r"(\d{1,9})-(\d{1,18})", re.ASCII)


def position(letter_id: str) -> tuple[int, int] | None:
    """The partition and offset of a public id; None if it is malformed."""
    match = _ID.fullmatch(letter_id)
    return (int(match[1]), int(match[2])) if match else None


def find_dead_letter(tenant: Tenant, letter_id: str) -> Opened:
    """Read one of the tenant's dead letters, with its original payload.

    Raises:
        NotFound: the tenant has no dead letter with this id, even if another tenant has.
    """
    if (place := position(letter_id)) is not None:
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
            row = connection.execute(FIND, place).fetchone()
        if row is not None:
            return Opened(DeadLetter(*row[:-1]), bytes(row[-1]))
    raise NotFound(
        "no such dead letter",
        fix=f"List the dead letters: pulse dlq list {tenant.slug} --state all",
        tenant=tenant.slug,
        dead_letter=letter_id,
    )
