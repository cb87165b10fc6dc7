"""Sources of a transform: datasets of one tenant, pinned at one moment."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import And, GreaterThanOrEqual, LessThanOrEqual

from pulse_pipelines.curated.query_check import Query
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities.index_runs import Counters
from pulse_pipelines.registry import CurrentLog, CurrentTable
from pulse_pipelines.registry.table_lookup import table_of
from pulse_pipelines.tables.iceberg_schema import IS_DELETED, UPDATED
from pulse_resources import iceberg, postgres
from pulse_resources.iceberg import readable

ID, TIMESTAMP = "id", "timestamp"


@dataclass(frozen=True)
class Source:
    """A dataset, in one snapshot of its table."""

    tenant: Tenant
    current: CurrentTable
    snapshot_id: int | None
    """None: it has no row yet."""
    has: frozenset[str]
    """Columns that the snapshot has; the dataset may follow a newer schema."""

    @property
    def dataset(self) -> Dataset:
        """The dataset."""
        return self.current.dataset

    @property
    def table(self) -> str:
        """The table's name in Spark."""
        return f"{iceberg.CATALOG}.{self.tenant.namespace}.{self.dataset.slug}"

    @property
    def reads(self) -> tuple[str, ...]:
        """The names that Spark's plan may have for it."""
        return self.table, f"{self.table} VERSION AS OF '{self.snapshot_id}'"

    @property
    def at(self) -> str:
        """Spark SQL of the table in this snapshot."""
        return self.table if self.snapshot_id is None else f"{self.table} VERSION AS OF {self.snapshot_id}"

    @property
    def place(self) -> str:
        """A word that changes when the rows change."""
        raise NotImplementedError

    def content(self) -> str:
        """Spark SQL of the rows that a query sees."""
        raise NotImplementedError

    def _rows(self, names: Sequence[str], rows: str, only: str) -> str:
        """Spark SQL of columns of those rows that meet a condition; a column that is newer is null."""
        listed = ", ".join(map(_quoted, names))
        typed = f"SELECT {listed} FROM {self.table} WHERE false"  # noqa: S608 - names that are checked
        if self.snapshot_id is None:
            return typed
        selected = ", ".join(
            _quoted(name) if name in self.has else f"NULL AS {_quoted(name)}" for name in names
        )
        query = f"SELECT {selected} FROM {rows} WHERE {only}"  # noqa: S608
        return query if self.has >= set(names) else f"{typed} UNION ALL {query}"


@dataclass(frozen=True)
class Events(Source):
    """A dataset of events: all of them, by their ids and times."""

    @property
    def place(self) -> str:
        """The snapshot: a compaction makes a new one, too, of the same rows."""
        return str(self.snapshot_id)

    def content(self) -> str:
        """Spark SQL of the ids, timestamps and properties of all events."""
        names = [ID, TIMESTAMP, *(column.name for column in self.dataset.columns)]
        return self._rows(names, self.at, "true")


@dataclass(frozen=True)
class Entities(Source):
    """A dataset of entities, in one snapshot of its log."""

    current: CurrentLog

    @property
    def log(self) -> CurrentLog:
        """The log in this snapshot."""
        return self.current

    @property
    def place(self) -> str:
        """The continuation: the generation of the log, and its last version."""
        return f"{self.log.generation}-{self.log.updated}"

    def content(self) -> str:
        """As `latest`, of all entities."""
        return self.latest()

    def latest(self, only: str = "true") -> str:
        """Spark SQL of the latest state: the ids and properties of entities that are not deleted.

        Args:
            only: condition on the ids of those that are wanted.
        """
        newest = f"row_number() OVER (PARTITION BY {ID} ORDER BY {UPDATED} DESC) AS _newest"
        return self.rows(f"(SELECT *, {newest} FROM {self.at} WHERE {only})", "_newest = 1")  # noqa: S608

    def rows(self, versions: str, only: str) -> str:
        """Spark SQL of the ids and properties of those versions that are not deletions.

        Args:
            versions: of this table, with all of its columns.
            only: condition on them.
        """
        names = [ID, *(column.name for column in self.dataset.columns)]
        return self._rows(names, versions, f"{only} AND NOT {IS_DELETED}")

    def read(self, numbers: Counters, columns: Collection[str]) -> pa.Table:
        """Columns of the versions with these `_updated`, which ascend.

        Raises:
            Terminal: a file of the table is gone or damaged.
        """
        table = iceberg.load_table((self.tenant.namespace, self.dataset.slug), self.log.metadata_location)
        with readable.damage_explained(self.log.metadata_location):
            first = GreaterThanOrEqual(UPDATED, int(numbers[0]))  # type: ignore[call-arg,arg-type]
            last = LessThanOrEqual(UPDATED, int(numbers[-1]))  # type: ignore[call-arg,arg-type]
            scan = table.scan(row_filter=And(first, last), selected_fields=(UPDATED, *columns))
            batches = scan.to_arrow_batch_reader()
            versions = pa.array(numbers)
            return pa.Table.from_batches(
                (batch.filter(pc.is_in(batch.column(UPDATED), versions)) for batch in batches), batches.schema
            )


@dataclass(frozen=True)
class Pinned:
    """A query, and its sources at one moment."""

    query: Query
    sources: tuple[Source, ...]

    @property
    def sql(self) -> str:
        """Spark SQL of the result."""
        named = ", ".join(
            f"{_quoted(source.dataset.slug)} AS ({source.content()})" for source in self.sources
        )
        return f"SELECT result.* FROM (WITH {named} ({self.query.text})) AS result"  # noqa: S608 - see `checked`

    @property
    def reads(self) -> list[str]:
        """What Spark's plan may read."""
        return [name for source in self.sources for name in source.reads]

    def entities(self, slug: str) -> Entities:
        """The source that is this dataset of entities."""
        return next(s for s in self.sources if isinstance(s, Entities) and s.dataset.slug == slug)

    def position(self, pipe: str) -> str:
        """The place of each source, and a hash of everything else that determines the result.

        Args:
            pipe: what identifies the result; a pipe of the same name may have written another dataset.
        """
        places = [f"{source.dataset.slug} {source.place}" for source in self.sources]
        return f"{', '.join(places)} of {self._digest(pipe)}"

    def since(self, pipe: str, position: str | None) -> Mapping[str, int] | None:
        """The places in the logs that a `position` names, by slug; None: it is of another query or source.

        All sources are datasets of entities.
        """
        places, _, of = (position or "").rpartition(" of ")
        if of != self._digest(pipe):
            return None
        by_slug = {slug: place.split("-") for slug, place in map(str.split, places.split(", "))}
        if any(by_slug[slug][0] != str(self.entities(slug).log.generation) for slug in by_slug):
            return None
        return {slug: int(updated) for slug, (_, updated) in by_slug.items()}

    def _digest(self, pipe: str) -> str:
        parts = [pipe, self.query.text]
        for source in self.sources:
            parts += [str(source.dataset.dataset_id), repr(source.dataset.columns), repr(sorted(source.has))]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def pin(tenant: Tenant, query: Query) -> Pinned:
    """Pin the sources, all at one moment, in the tenant's session.

    Raises:
        NotFound: the tenant has no such dataset.
        Terminal: files of it are gone or damaged.
    """

    def read_tables() -> Sequence[CurrentTable]:
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id, one_snapshot=True) as connection:
            return [table_of(connection, tenant, slug) for slug in query.tables]

    def use(tables: Sequence[CurrentTable]) -> Pinned:
        return Pinned(query, tuple(_pinned(tenant, current) for current in tables))

    def location(tables: Sequence[CurrentTable]) -> str:
        return " ".join(current.metadata_location for current in tables)

    return readable.as_it_is(use, read_tables(), read_tables, location)


def _pinned(tenant: Tenant, current: CurrentTable) -> Source:
    table = iceberg.load_table((tenant.namespace, current.dataset.slug), current.metadata_location)
    readable.check_snapshot(table)  # Spark would silently compute from the files that it can read
    snapshot = table.current_snapshot()
    schema = table.schemas()[snapshot.schema_id] if snapshot and snapshot.schema_id is not None else None
    names = frozenset(field.name for field in (schema or table.schema()).fields)
    snapshot_id = snapshot.snapshot_id if snapshot else None
    if isinstance(current, CurrentLog):
        return Entities(tenant, current, snapshot_id, names)
    return Events(tenant, current, snapshot_id, names)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
