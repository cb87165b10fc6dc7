"""Tool arguments: pydantic models, whose JSON Schema clients see and whose errors models can act on."""

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
)

from pulse_pipelines.lake.names import LONGEST
from pulse_pipelines.sql.gate import MAX_CHARACTERS

MAX_ROWS = 500
Slug = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
Column = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Limit = Annotated[int, Field(ge=1, le=MAX_ROWS, description="Maximum rows of this page.")]
Offset = Annotated[int, Field(ge=0, lt=2**53, description="Rows, or columns, before this page.")]
TableName = Annotated[str, StringConstraints(min_length=1, max_length=2 * LONGEST + 1)]
"""As a query names it: a slug, a rollup's table, or `namespace.table` of one's own, of any characters."""
SnapshotId = Annotated[
    int,
    Field(ge=0, lt=2**63),
    # As text: many clients have numbers of 53 bits.
    WithJsonSchema({"type": "string", "pattern": "^[0-9]{1,19}$"}),
]
Snapshots = Annotated[
    dict[TableName, SnapshotId],
    Field(description="Snapshots at which to read tables, by name: those of the previous page."),
]


def _in_utc(at: datetime) -> datetime:
    try:
        return at.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("is beyond the calendar in UTC") from error


Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OfAll(Arguments):
    limit: Annotated[int, Field(ge=1, le=100, description="Maximum datasets of this page.")] = 50
    after: Slug | None = Field(
        default=None, description="The slug before this page: `next` of the previous page."
    )


class OfDataset(Arguments):
    dataset: Slug = Field(description="Slug of one of the datasets that list_datasets names.")


class DescribeArguments(OfDataset):
    limit: Annotated[int, Field(ge=1, le=200, description="Maximum columns of this page.")] = 100
    offset: Offset = 0


class OfSome(OfAll):
    dataset: Slug | None = Field(default=None, description="One dataset; by default all.")


class Paged(Arguments):
    limit: Limit = 100
    offset: Offset = 0
    snapshots: Snapshots = Field(default_factory=dict)


class QueryArguments(Paged):
    sql: str = Field(
        min_length=1, max_length=MAX_CHARACTERS, description="One SELECT in DuckDB's dialect, over slugs."
    )


class ExplainArguments(Arguments):
    sql: str = Field(min_length=1, max_length=MAX_CHARACTERS, description="One SELECT; it is not run.")


class MeasureOf(Arguments):
    aggregation: Literal[
        "count", "count_distinct", "sum", "avg", "min", "max", "median", "stddev", "p90", "p95", "p99"
    ]
    column: Column | None = Field(default=None, description="None to count rows.")


class Filter(Arguments):
    column: Column
    operator: Literal["=", "!=", "<", "<=", ">", ">=", "between", "missing", "known"]
    values: list[str | Number | int | bool] = Field(
        default_factory=list,
        max_length=100,
        description="Of = and !=: any of them; between: two. A row without a value is != every value.",
    )


class MeasureArguments(Paged, OfDataset):
    measures: list[MeasureOf] = Field(min_length=1, max_length=10)
    by: list[Column] = Field(default_factory=list, max_length=5, description="Columns to break down by.")
    grain: Literal["minute", "hour", "day", "week", "month", "quarter", "year"] | None = Field(
        default=None, description="Break down by time, too."
    )
    filters: list[Filter] = Field(default_factory=list, max_length=20)
    start: Moment | None = Field(default=None, description="Events at this time or later.")
    end: Moment | None = Field(default=None, description="Events before this time.")
    top: int | None = Field(
        default=None, ge=1, le=10_000, description="Only the groups with the greatest first measure."
    )


class DeadLetterArguments(Arguments):
    dataset: str | None = Field(default=None, max_length=512)
    limit: int = Field(default=50, ge=1, le=200)
    cursor: str | None = Field(default=None, max_length=200, description="next_cursor of the previous page.")


class TraceArguments(Arguments):
    event_id: str = Field(min_length=1, max_length=512, pattern=r"^[^\x00]*$")
    dataset: Slug | None = None
