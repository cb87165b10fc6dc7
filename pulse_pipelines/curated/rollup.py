"""Rollups: aggregations of each day of a dataset, computed for many datasets and days at once."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

import pyarrow as pa
from pyiceberg.schema import Schema

from pulse_pipelines.curated.statements import spans
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.roles import ACTOR, EVENT_TYPE
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import iceberg

UTC = """make_timestamp(epoch_us("timestamp"))"""
"""The event's UTC time without a zone, whose day and hour are plain arithmetic, without time zone rules."""
DAY, HOUR = f"CAST({UTC} AS DATE)", f"hour({UTC})"
"""Expressions of DuckDB over a row of a dataset's table."""

PARTITION_FIELD = "day_day"
"""The partition field of a rollup's table, which no column can be called."""


@dataclass(frozen=True)
class Part:
    """Days of one tenant's dataset, in one snapshot of its table."""

    number: int
    """Identifies its rows in the result of a statement over many parts."""
    tenant: Tenant
    dataset: Dataset
    location: str
    """Location of the table's metadata."""
    snapshot_id: int
    columns: Mapping[str, str]
    """Iceberg types by name of that snapshot's columns; the dataset may follow a newer schema."""
    days: tuple[date, ...]

    @property
    def table(self) -> str:
        """The table's name in Spark."""
        return f"{iceberg.CATALOG}.{self.tenant.namespace}.{self.dataset.slug}"

    @property
    def pinned(self) -> str:
        """The table at its snapshot, as written in Spark's plans."""
        return f"{self.table} VERSION AS OF '{self.snapshot_id}'"

    def select(self, expressions: str, days: Sequence[date] | None = None) -> str:
        """A query of expressions over the events of some of its days (all if not given)."""
        within = " OR ".join(
            # Up to the last microsecond: the last day that a table can hold has no next day.
            f"(`timestamp` >= TIMESTAMP '{first} 00:00:00Z'"
            f" AND `timestamp` <= TIMESTAMP '{last} 23:59:59.999999Z')"
            for first, last in spans(self.days if days is None else days)
        )
        return f"SELECT {expressions} FROM {self.table} VERSION AS OF {self.snapshot_id} WHERE {within}"  # noqa: S608 - names and numbers

    def column(self, name: str | None) -> str:
        """A DuckDB expression for a column as text; null if the snapshot has no column of that name."""
        return f'CAST("{name}" AS VARCHAR)' if name in self.columns else "CAST(NULL AS VARCHAR)"


@dataclass(frozen=True)
class DayQuery:
    """SQL by which DuckDB computes days of one part; only for Pulse's own rollups."""

    events: str
    """Expressions selected from each row of the table, each with an alias."""
    answer: str
    """A query over the view `events` of these and `day`; its columns are `day` and the measures."""


@dataclass(frozen=True, eq=False)
class Rollup:
    """An aggregation of a dataset's days. Equal only to itself, so that days of many datasets group by it."""

    name: str
    description: str
    grain: tuple[str, ...]
    """Key columns of a day's rows; empty: a day has one row."""
    text: str
    """The text that determines the values: days computed by another text are computed again."""
    statement: Callable[[Sequence[Part]], str] = lambda parts: ""
    """A team's rollup: Spark SQL over parts, with the columns `part`, `day`, the grain and the measures."""
    query: Callable[[Part], DayQuery] | None = None
    """Pulse's own rollup: its DuckDB query."""
    schema: Schema | None = None
    """Schema of its Iceberg table; None: that of Spark's result."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Descriptions of the columns."""
    source: str = ""
    """The file that it is read from; empty: it is Pulse's own."""
    problem: str | None = None
    """Why it cannot be computed at all."""

    def definition(self, dataset: Dataset) -> str:
        """A hash of everything, besides the events, that determines its values for this dataset."""
        roles = dataset.column_of(ACTOR), dataset.column_of(EVENT_TYPE)
        return hashlib.sha256(repr((self.text, self.grain, self.problem, roles)).encode()).hexdigest()[:16]

    def checked(self, rows: pa.Table, dataset: Dataset) -> pa.Table:
        """The rows of a day, checked against the rollup's declaration.

        Raises:
            UserError: they violate it.
        """
        return rows


def union(queries: Sequence[str]) -> str:
    return "\nUNION ALL ".join(queries)
