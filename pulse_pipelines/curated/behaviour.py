"""The rollup `behaviour`: distinct actors of a day and their sessions, for schemas that name an actor.

It keeps no row of any actor, so after the erasure of a person only the day is computed again. Sessions end
with the day: a session that continues past midnight (UTC) counts in both days.
"""

from functools import cache

from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import DateType, DoubleType, LongType, NestedField, TimestamptzType

from pulse_pipelines.curated.rollup import DayQuery, Part, Rollup
from pulse_pipelines.domain.roles import ACTOR

SQL = """
WITH steps AS (
    SELECT day, actor, at_us,
        coalesce(at_us - lag(at_us) OVER (PARTITION BY day, actor ORDER BY at_us) <= {gap}, false) AS goes_on
    FROM events WHERE actor IS NOT NULL
),
numbered AS (
    SELECT day, actor, at_us,
        sum(CASE WHEN goes_on THEN 0 ELSE 1 END) OVER (
            PARTITION BY day, actor ORDER BY at_us ROWS UNBOUNDED PRECEDING) AS session
    FROM steps
),
sessions AS (
    SELECT day, actor, session, count(*) AS n, min(at_us) AS first_us, max(at_us) AS last_us
    FROM numbered GROUP BY day, actor, session
),
actors AS (
    SELECT day, actor, CAST(sum(n) AS BIGINT) AS n, count(*) AS sessions,
        CAST(sum(last_us - first_us) AS DOUBLE) AS length, min(first_us) AS first_us, max(last_us) AS last_us
    FROM sessions GROUP BY day, actor
),
days AS (
    SELECT day, count(*) AS actors, CAST(sum(n) AS BIGINT) AS events, avg(n) AS mean,
        quantile_cont(n, 0.5) AS p50, max(n) AS most, min(first_us) AS first_us, max(last_us) AS last_us,
        CAST(sum(sessions) AS BIGINT) AS sessions, sum(length) / sum(sessions) / 1e6 AS seconds
    FROM actors GROUP BY day
),
anonymous AS (
    SELECT day, count(*) FILTER (WHERE actor IS NULL) AS n FROM events GROUP BY day
)
SELECT day, coalesce(actors, 0) AS actors, coalesce(days.events, 0) AS events,
    anonymous.n AS events_without_actor, mean AS events_per_actor_mean, p50 AS events_per_actor_p50,
    most AS events_per_actor_max, make_timestamptz(first_us) AS first_seen,
    make_timestamptz(last_us) AS last_seen, coalesce(sessions, 0) AS sessions,
    seconds AS session_seconds_mean
FROM anonymous LEFT JOIN days USING (day)
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
    """The rollup `behaviour`, whose sessions end at a pause of more than `gap_minutes`."""
    gap = round(gap_minutes * 60_000_000)

    def query(part: Part) -> DayQuery:
        actor = part.column(part.dataset.column_of(ACTOR))
        return DayQuery(f'{actor} AS actor, epoch_us("timestamp") AS at_us', SQL.format(gap=gap))

    return Rollup(
        name="behaviour",
        description="Of the day's actors, named by the schema's `x-pulse-actor`: how many there were, events "
        f"per actor, when the first and the last were seen, and sessions (a pause of {gap_minutes:g} minutes "
        "ends one). No row of any actor is kept.",
        grain=(),
        text=f"{SQL}{gap}",
        query=query,
        schema=SCHEMA,
        columns=COLUMNS,
    )
