"""Dead letters in a backfill: open ones that it can land, and those that an earlier backfill landed."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from itertools import compress, groupby
from typing import Any

import pyarrow as pa

from pulse_pipelines.backfill.rows import DayRows
from pulse_pipelines.claims import claim_runs
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.event_limits import EventLimits
from pulse_pipelines.tables.raw_zone import Message
from pulse_resources import postgres

PAGE = 1_000

# Without events that killed their process, which would kill the backfill, too, and without those over the
# quota, which a backfill must not bypass: both can only be replayed.
OPEN = """
SELECT NULL, partition, event_offset, received_at, payload FROM dead_letters
WHERE tenant_id = %(tenant)s AND dataset = %(slug)s AND resolution IS NULL
  AND reason NOT IN ('processing_failed', 'over_quota') AND octet_length(payload) <= %(max_bytes)s
ORDER BY partition, event_offset
"""
LANDED = """
SELECT l.landed_by, l.partition, l.event_offset, l.received_at, l.payload
FROM dead_letters l JOIN backfills b ON b.tenant_id = l.tenant_id AND b.backfill_id = l.landed_by
WHERE l.tenant_id = %(tenant)s AND b.dataset_id = %(dataset)s AND b.day = %(day)s
ORDER BY l.landed_by, l.partition, l.event_offset
"""


@dataclass(frozen=True)
class Landing:
    """A dead letter that becomes a row, at its own topic position."""

    partition: int
    offset: int
    event_id: str


def landed(dataset: Dataset, day: date) -> Iterator[tuple[str, list[Message]]]:
    """Letters that are rows of the day already, in chunks, each with the backfill that landed it."""
    values = {"tenant": dataset.tenant_id, "dataset": dataset.dataset_id, "day": day}
    for page in _pages(dataset, LANDED, values):
        for backfill_id, rows in groupby(page, key=lambda row: str(row[0])):
            yield backfill_id, [_message(row) for row in rows]


def passing(
    conformer: DayRows, dataset: Dataset, backfill_id: str, limits: EventLimits
) -> Iterator[tuple[pa.Table, list[Landing]]]:
    """Rows of open letters that are valid now and whose id is not claimed, with their letters, in pages.

    Of several letters with one id the first, by its position, lands; the others stay dead letters.
    """
    values = {"tenant": dataset.tenant_id, "slug": dataset.slug, "max_bytes": limits.max_bytes}
    event_ids: set[str] = set()
    for page in _pages(dataset, OPEN, values):
        table, _ = conformer.conformed(backfill_id, [_message(row) for row in page])
        landings = [
            Landing(*place)
            for place in zip(
                *(table.column(name).to_pylist() for name in ("_kafka_partition", "_offset", "id")),
                strict=True,
            )
        ]
        with postgres.tenant_transaction(
            "pulse_pipeline", dataset.tenant_id, one_snapshot=True
        ) as connection:
            claimed = claim_runs.claimed_ids(connection, dataset, [letter.event_id for letter in landings])
        lands = []
        for letter in landings:
            lands.append(letter.event_id not in claimed and letter.event_id not in event_ids)
            event_ids.add(letter.event_id)
        yield table.filter(pa.array(lands, pa.bool_())), list(compress(landings, lands))


def _pages(dataset: Dataset, query: str, values: dict[str, Any]) -> Iterator[list[tuple[Any, ...]]]:
    with (
        postgres.tenant_transaction("pulse_pipeline", dataset.tenant_id) as connection,
        connection.cursor(name="letters") as cursor,
    ):
        cursor.execute(query, values)
        while page := cursor.fetchmany(PAGE):
            yield page


def _message(row: tuple[Any, ...]) -> Message:
    _, partition, offset, received_at, payload = row
    return Message(partition, offset, round(received_at.timestamp() * 1000), bytes(payload))
