"""Pulse's own rollups as Spark SQL over the tables themselves: what the rollups are compared with."""

from collections.abc import Sequence

from pulse_pipelines.curated.daily import MOST_TYPES, NUMERIC
from pulse_pipelines.curated.rollup import Part, union
from pulse_pipelines.domain.roles import ACTOR, EVENT_TYPE

DAY = "CAST(`timestamp` AS DATE) AS day"

DAILY = """
WITH events AS ({events}),
totals AS ({totals}),
hours AS (
    SELECT part, day, array_sort(collect_list(struct(hour, events))) AS by_hour
    FROM (SELECT part, day, hour, count(*) AS events FROM events GROUP BY part, day, hour)
    GROUP BY part, day
),
ranked AS (
    SELECT part, day, type, count(*) AS events,
        row_number() OVER (PARTITION BY part, day ORDER BY count(*) DESC, type) AS place
    FROM events GROUP BY part, day, type
),
types AS (
    SELECT part, day, count(*) AS types,
        transform(
            array_sort(collect_list(struct(place, type, events)) FILTER (WHERE place <= {most})),
            found -> named_struct('type', found.type, 'events', found.events)) AS by_type,
        coalesce(sum(events) FILTER (WHERE place > {most}), 0) AS events_of_other_types
    FROM ranked GROUP BY part, day
)
SELECT part, day, events, distinct_ids, first_at, last_at, by_hour, typed_by, types, by_type,
    events_of_other_types, numbers
FROM totals JOIN hours USING (part, day) JOIN types USING (part, day)
"""
TOTALS = """{part} AS part, {day}, count(*) AS events, count(DISTINCT id) AS distinct_ids,
    min(`timestamp`) AS first_at, max(`timestamp`) AS last_at, '{typed_by}' AS typed_by,
    CAST(array({numbers}) AS ARRAY<STRUCT<
        column: STRING, min: DOUBLE, mean: DOUBLE, max: DOUBLE, null_share: DOUBLE>>) AS numbers"""
NUMBER = """named_struct('column', '{name}', 'min', CAST(min(`{name}`) AS DOUBLE),
    'mean', CAST(avg(`{name}`) AS DOUBLE), 'max', CAST(max(`{name}`) AS DOUBLE),
    'null_share', (count(*) - count(`{name}`)) / count(*))"""
BEHAVIOUR = """
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


def daily(parts: Sequence[Part]) -> str:
    return DAILY.format(
        events=union([_events(part) for part in parts]),
        totals=union([_totals(part) for part in parts]),
        most=MOST_TYPES,
    )


def behaviour(parts: Sequence[Part], gap_us: int) -> str:
    return BEHAVIOUR.format(events=union([_steps(part) for part in parts]), gap=gap_us)


def _events(part: Part) -> str:
    kind = _text(part, part.dataset.column_of(EVENT_TYPE) or "schema_version")
    return part.select(f"{part.number} AS part, {DAY}, hour(`timestamp`) AS hour, {kind} AS type")


def _totals(part: Part) -> str:
    declared = (column.name for column in part.dataset.columns)
    numeric = [name for name in declared if part.columns.get(name) in NUMERIC]
    columns = TOTALS.format(
        part=part.number,
        day=DAY,
        typed_by=part.dataset.column_of(EVENT_TYPE) or "schema_version",
        numbers=", ".join(NUMBER.format(name=name) for name in numeric),
    )
    return f"{part.select(columns)} GROUP BY {DAY.partition(' AS day')[0]}"


def _steps(part: Part) -> str:
    actor = _text(part, part.dataset.column_of(ACTOR))
    return part.select(f"{part.number} AS part, {DAY}, {actor} AS actor, unix_micros(`timestamp`) AS at")


def _text(part: Part, name: str | None) -> str:
    return f"CAST(`{name}` AS STRING)" if name in part.columns else "CAST(NULL AS STRING)"
