"""A rollup: what is computed from each day of a dataset, of many datasets and days at once."""

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
"""The event's time without its zone: a day and an hour of it are arithmetic, and ask no calendar of zones."""
DAY, HOUR = f"CAST({UTC} AS DATE)", f"hour({UTC})"
"""Expressions of DuckDB over a row of a dataset's table."""


@dataclass(frozen=True)
class Part:
    """Days of one tenant's dataset, as one snapshot of its table has them."""

    number: int
    """Marks its rows in the result of a statement over many parts."""
    tenant: Tenant
    dataset: Dataset
    location: str
    """Of the table's metadata."""
    snapshot_id: int
    columns: Mapping[str, str]
    """Name and Iceberg type of what that snapshot has; the dataset may have moved on."""
    days: tuple[date, ...]

    @property
    def table(self) -> str:
        """Its table, as Spark names it."""
        return f"{iceberg.CATALOG}.{self.tenant.namespace}.{self.dataset.slug}"

    @property
    def pinned(self) -> str:
        """Its table at its snapshot, as Spark's plans name it."""
        return f"{self.table} VERSION AS OF '{self.snapshot_id}'"

    def select(self, what: str, days: Sequence[date] | None = None) -> str:
        """A query of expressions over the events of some of its days, all if not given."""
        within = " OR ".join(
            # To its last microsecond: the last day that a table can hold has no next one.
            f"(`timestamp` >= TIMESTAMP '{first} 00:00:00Z'"
            f" AND `timestamp` <= TIMESTAMP '{last} 23:59:59.999999Z')"
            for first, last in spans(self.days if days is None else days)
        )
        return f"SELECT {what} FROM {self.table} VERSION AS OF {self.snapshot_id} WHERE {within}"  # noqa: S608 - names and numbers

    def column(self, name: str | None) -> str:
        """An expression of DuckDB for a column as text; null where the snapshot has none of that name."""
        return f'CAST("{name}" AS VARCHAR)' if name in self.columns else "CAST(NULL AS VARCHAR)"


@dataclass(frozen=True)
class DayQuery:
    """How DuckDB computes days of one part; SQL of Pulse's own making alone."""

    events: str
    """What is kept of each row of the table: expressions, each with a name."""
    answer: str
    """A query over the view `events`, which has these and `day`; its columns are `day` and the measures."""


@dataclass(frozen=True, eq=False)
class Rollup:
    """Known by identity: whoever computes many days of many datasets makes each rollup once."""

    name: str
    description: str
    grain: tuple[str, ...]
    """Columns that tell the rows of a day apart; empty: a day has one row."""
    text: str
    """What decides the values: days that were computed by another text are computed again."""
    statement: Callable[[Sequence[Part]], str] = lambda parts: ""
    """A team's: Spark SQL over parts, with the columns `part`, `day`, the grain and the measures."""
    query: Callable[[Part], DayQuery] | None = None
    """Pulse's own."""
    schema: Schema | None = None
    """Of its Iceberg table; None: by what Spark answers."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """What each column says, for people."""
    source: str = ""
    """The file that it comes from; empty: it is Pulse's own."""
    problem: str | None = None
    """Why it cannot be computed at all."""

    def definition(self, dataset: Dataset) -> str:
        """What changes when its values for this dataset would, with the same events."""
        roles = dataset.column_of(ACTOR), dataset.column_of(EVENT_TYPE)
        return hashlib.sha256(repr((self.text, self.grain, self.problem, roles)).encode()).hexdigest()[:16]

    def checked(self, rows: pa.Table, dataset: Dataset) -> pa.Table:
        """The rows of a day, once they are what the rollup promises.

        Raises:
            UserError: they are not.
        """
        return rows


def union(queries: Sequence[str]) -> str:
    return "\nUNION ALL ".join(queries)
