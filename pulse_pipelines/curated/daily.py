"""The rollup `daily`, of every dataset: what happened, when, of which type, and what the numbers were."""

from collections.abc import Sequence

from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import (
    DateType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from pulse_pipelines.curated.rollup import DAY, Part, Rollup, union
from pulse_pipelines.domain.roles import EVENT_TYPE

MOST_TYPES = 100
"""Types that a day lists, the most frequent first; the events of others are counted together."""
NUMERIC = ("long", "double")

SQL = """
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


def _fields(*fields: tuple[str, object]) -> list[NestedField]:
    return [NestedField(number, name, kind) for number, (name, kind) in enumerate(fields, 1)]  # type: ignore[arg-type]


def _list_of(*fields: tuple[str, object]) -> ListType:
    return ListType(0, StructType(*_fields(*fields)), element_required=False)


SCHEMA = assign_fresh_schema_ids(
    Schema(
        *_fields(
            ("day", DateType()),
            ("events", LongType()),
            ("distinct_ids", LongType()),
            ("first_at", TimestamptzType()),
            ("last_at", TimestamptzType()),
            ("by_hour", _list_of(("hour", IntegerType()), ("events", LongType()))),
            ("typed_by", StringType()),
            ("types", LongType()),
            ("by_type", _list_of(("type", StringType()), ("events", LongType()))),
            ("events_of_other_types", LongType()),
            (
                "numbers",
                _list_of(
                    ("column", StringType()),
                    ("min", DoubleType()),
                    ("mean", DoubleType()),
                    ("max", DoubleType()),
                    ("null_share", DoubleType()),
                ),
            ),
        )
    )
)


def _statement(parts: Sequence[Part]) -> str:
    return SQL.format(
        events=union([_events(part) for part in parts]),
        totals=union([_totals(part) for part in parts]),
        most=MOST_TYPES,
    )


def _events(part: Part) -> str:
    """What counts by hour and type need of each event: the same columns for every dataset."""
    kind = part.column(part.dataset.column_of(EVENT_TYPE) or "schema_version")
    return part.select(f"{part.number} AS part, {DAY}, hour(`timestamp`) AS hour, {kind} AS type")


def _totals(part: Part) -> str:
    declared = (column.name for column in part.dataset.columns)
    numeric = [name for name in declared if part.columns.get(name) in NUMERIC]
    what = TOTALS.format(
        part=part.number,
        day=DAY,
        typed_by=part.dataset.column_of(EVENT_TYPE) or "schema_version",
        numbers=", ".join(NUMBER.format(name=name) for name in numeric),
    )
    return f"{part.select(what)} GROUP BY {DAY.partition(' AS day')[0]}"


DAILY = Rollup(
    name="daily",
    description="Events and distinct event ids of the day, by hour and by type, and of each numeric column "
    "its least, mean and greatest value and the share of events that have none. The type is the property "
    "that the schema names by `x-pulse-type`, else the version of the schema.",
    grain=(),
    text=SQL + TOTALS + NUMBER,
    statement=_statement,
    schema=SCHEMA,
    columns={
        "day": "The day of the events' timestamps, in UTC",
        "events": "Events of the day",
        "distinct_ids": "Distinct event ids: as many as events, since an id lands once",
        "first_at": "Timestamp of the day's first event",
        "last_at": "Timestamp of the day's last event",
        "by_hour": "Events in each hour, in UTC",
        "typed_by": "The column by which events are counted in `by_type`",
        "types": "Distinct values of that column",
        "by_type": f"Events of each type, the {MOST_TYPES} most frequent",
        "events_of_other_types": "Events of all other types",
        "numbers": "Of each numeric column: minimum, mean, maximum, and the share of events without a value",
    },
)
