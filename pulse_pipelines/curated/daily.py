"""The rollup `daily`, of every dataset: events by hour and by type, and statistics of numeric columns."""

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

from pulse_pipelines.curated.rollup import HOUR, DayQuery, Part, Rollup
from pulse_pipelines.domain.roles import EVENT_TYPE

MOST_TYPES = 100
"""Maximum number of types that a day lists, the most frequent first; other types are counted together."""
NUMERIC = ("long", "double")

SQL = """
WITH counted AS (
    SELECT day, hour, type, count(*) AS n FROM events GROUP BY day, hour, type
),
hours AS (
    SELECT day, list({{'hour': CAST(hour AS INTEGER), 'events': n}} ORDER BY hour) AS by_hour
    FROM (SELECT day, hour, CAST(sum(n) AS BIGINT) AS n FROM counted GROUP BY day, hour)
    GROUP BY day
),
ranked AS (
    SELECT day, type, CAST(sum(n) AS BIGINT) AS n,
        row_number() OVER (PARTITION BY day ORDER BY sum(n) DESC, type NULLS FIRST) AS place
    FROM counted GROUP BY day, type
),
types AS (
    SELECT day, count(*) AS types,
        list({{'type': type, 'events': n}} ORDER BY place) FILTER (WHERE place <= {most}) AS by_type,
        CAST(coalesce(sum(n) FILTER (WHERE place > {most}), 0) AS BIGINT) AS events_of_other_types
    FROM ranked GROUP BY day
),
totals AS (
    SELECT day, count(*) AS events, count(DISTINCT id) AS distinct_ids, min(moment) AS first_at,
        max(moment) AS last_at, CAST([{numbers}] AS STRUCT(
            "column" VARCHAR, min DOUBLE, mean DOUBLE, max DOUBLE, null_share DOUBLE)[]) AS numbers
    FROM events GROUP BY day
)
SELECT day, totals.events, distinct_ids, first_at, last_at, by_hour, '{typed_by}' AS typed_by, types, by_type,
    events_of_other_types, numbers
FROM totals JOIN hours USING (day) JOIN types USING (day)
"""
NUMBER = """{{'column': '{name}', 'min': min({value}), 'mean': avg({value}), 'max': max({value}),
    'null_share': (count(*) - count({value})) / count(*)}}"""


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


def _query(part: Part) -> DayQuery:
    typed_by = part.dataset.column_of(EVENT_TYPE) or "schema_version"
    declared = (column.name for column in part.dataset.columns)
    numeric = {name: f"number_{n}" for n, name in enumerate(declared) if part.columns.get(name) in NUMERIC}
    selected = [
        f"{HOUR} AS hour",
        f"{part.column(typed_by)} AS type",
        "id",
        '"timestamp" AS moment',
        *(f'CAST("{name}" AS DOUBLE) AS {value}' for name, value in numeric.items()),
    ]
    numbers = ", ".join(NUMBER.format(name=name, value=value) for name, value in numeric.items())
    return DayQuery(", ".join(selected), SQL.format(most=MOST_TYPES, numbers=numbers, typed_by=typed_by))


DAILY = Rollup(
    name="daily",
    description="Events and distinct event ids of the day, by hour and by type, and for each numeric "
    "column the minimum, mean and maximum, and the share of events without a value. The type is the "
    "property that the schema names by `x-pulse-type`, else the version of the schema.",
    grain=(),
    text=SQL + NUMBER,
    query=_query,
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
