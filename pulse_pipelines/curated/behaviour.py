"""The rollup `behaviour`: who was there, for how long. Of datasets whose schema names an actor.

It keeps no row of any actor, so erasing a person needs no more than computing the day again. Sessions end
with the day: one that goes on past midnight (UTC) counts in both.
"""

from collections.abc import Sequence
from functools import cache

from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import DateType, DoubleType, LongType, NestedField, TimestamptzType

from pulse_pipelines.curated.rollup import DAY, Part, Rollup, union
from pulse_pipelines.domain.roles import ACTOR

SQL = """
WITH events AS ({events}),
steps AS (
    SELECT part, day, actor, at,
        coalesce(at - lag(at) OVER (PARTITION BY part, day, actor ORDER BY at) <= {gap}, false) AS goes_on
    FROM events WHERE actor IS NOT NULL
),
numbered AS (
    SELECT part, day, actor, at,
        sum(CASE WHEN goes_on THEN 0 ELSE 1 END) OVER (
            PARTITION BY part, day, actor ORDER BY at ROWS UNBOUNDED PRECEDING) AS session
    FROM steps
),
sessions AS (
    SELECT part, day, actor, session, count(*) AS events, min(at) AS first_at, max(at) AS last_at
    FROM numbered GROUP BY part, day, actor, session
),
actors AS (
    SELECT part, day, actor, sum(events) AS events, count(*) AS sessions, sum(last_at - first_at) AS length,
        min(first_at) AS first_at, max(last_at) AS last_at
    FROM sessions GROUP BY part, day, actor
),
days AS (
    SELECT part, day, count(*) AS actors, sum(events) AS events, avg(events) AS mean,
        percentile(events, 0.5) AS p50, max(events) AS most, min(first_at) AS first_at,
        max(last_at) AS last_at, sum(sessions) AS sessions, sum(length) / sum(sessions) / 1e6 AS seconds
    FROM actors GROUP BY part, day
),
anonymous AS (
    SELECT part, day, count_if(actor IS NULL) AS events FROM events GROUP BY part, day
)
SELECT part, day, coalesce(actors, 0) AS actors, coalesce(days.events, 0) AS events,
    anonymous.events AS events_without_actor, mean AS events_per_actor_mean, p50 AS events_per_actor_p50,
    most AS events_per_actor_max, timestamp_micros(first_at) AS first_seen,
    timestamp_micros(last_at) AS last_seen, coalesce(sessions, 0) AS sessions,
    CAST(seconds AS DOUBLE) AS session_seconds_mean
FROM anonymous LEFT JOIN days USING (part, day)
"""

SCHEMA = assign_fresh_schema_ids(
    Schema(
        NestedField(1, "day", DateType()),
        NestedField(2, "actors", LongType()),
        NestedField(3, "events", LongType()),
        NestedField(4, "events_without_actor", LongType()),
        NestedField(5, "events_per_actor_mean", DoubleType()),
        NestedField(6, "events_per_actor_p50", DoubleType()),
        NestedField(7, "events_per_actor_max", LongType()),
        NestedField(8, "first_seen", TimestamptzType()),
        NestedField(9, "last_seen", TimestamptzType()),
        NestedField(10, "sessions", LongType()),
        NestedField(11, "session_seconds_mean", DoubleType()),
    )
)

COLUMNS = {
    "day": "The day of the events' timestamps, in UTC",
    "actors": "Distinct actors of the day",
    "events": "Events of the day that name an actor",
    "events_without_actor": "Events of the day that name none",
    "events_per_actor_mean": "Mean of the events that an actor has on the day",
    "events_per_actor_p50": "Median of the events that an actor has on the day",
    "events_per_actor_max": "Events of the busiest actor",
    "first_seen": "Timestamp of the first event that names an actor",
    "last_seen": "Timestamp of the last event that names an actor",
    "sessions": "Sessions of all actors: a longer pause between two events of an actor begins another",
    "session_seconds_mean": "Mean length of a session in seconds, from its first event to its last",
}


@cache
def behaviour(gap_minutes: float) -> Rollup:
    """The rollup with sessions that a pause of more than `gap_minutes` ends."""
    gap = round(gap_minutes * 60_000_000)

    def statement(parts: Sequence[Part]) -> str:
        return SQL.format(events=union([_events(part) for part in parts]), gap=gap)

    return Rollup(
        name="behaviour",
        description="Of the day's actors, named by the schema's `x-pulse-actor`: how many there were, events "
        f"per actor, when the first and the last were seen, and sessions (a pause of {gap_minutes:g} minutes "
        "ends one). No row of any actor is kept.",
        grain=(),
        text=f"{SQL}{gap}",
        statement=statement,
        schema=SCHEMA,
        columns=COLUMNS,
    )


def _events(part: Part) -> str:
    actor = part.column(part.dataset.column_of(ACTOR))
    return part.select(f"{part.number} AS part, {DAY}, {actor} AS actor, unix_micros(`timestamp`) AS at")
