"""Sources of a transform: datasets of entities of one tenant, pinned at one moment."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import And, GreaterThanOrEqual, LessThanOrEqual

from pulse_pipelines.curated.checked import Query, checked
from pulse_pipelines.domain.pipes import Definition, Transform
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.pipes.registry import everyones
from pulse_pipelines.registry import CurrentLog
from pulse_pipelines.registry.datasets import log_of
from pulse_pipelines.tables.iceberg_schema import IS_DELETED, UPDATED
from pulse_pipelines.tables.index_runs import Counters
from pulse_resources import iceberg, postgres, readable
from pulse_resources.errors import Conflict, UserError

MOST = 16
"""Sources of a transform."""
ID = "id"


@dataclass(frozen=True)
class Source:
    """A dataset of entities, in one snapshot of its log."""

    tenant: Tenant
    log: CurrentLog
    snapshot_id: int | None
    """None: it has no version yet."""
    has: frozenset[str]
    """Columns that the snapshot has; the dataset may follow a newer schema."""

    @property
    def table(self) -> str:
        """The table's name in Spark."""
        return f"{iceberg.CATALOG}.{self.tenant.namespace}.{self.log.dataset.slug}"

    @property
    def reads(self) -> tuple[str, ...]:
        """What Spark's plan may read of it."""
        return self.table, f"{self.table} VERSION AS OF '{self.snapshot_id}'"

    @property
    def at(self) -> str:
        """Spark SQL of the table in this snapshot."""
        return self.table if self.snapshot_id is None else f"{self.table} VERSION AS OF {self.snapshot_id}"

    def latest(self, only: str = "true") -> str:
        """Spark SQL of the latest state: the ids and properties of entities that are not deleted.

        Args:
            only: condition on the ids of those that are wanted.
        """
        newest = f"row_number() OVER (PARTITION BY {ID} ORDER BY {UPDATED} DESC) AS _newest"
        return self.rows(f"(SELECT *, {newest} FROM {self.at} WHERE {only})", "_newest = 1")  # noqa: S608

    def rows(self, versions: str, only: str) -> str:
        """Spark SQL of the ids and properties of those versions that are no deletions.

        Args:
            versions: of this table, with all of its columns.
            only: condition on them.
        """
        names = [ID, *(column.name for column in self.log.dataset.columns)]
        listed = ", ".join(map(_quoted, names))
        typed = f"SELECT {listed} FROM {self.table} WHERE false"  # noqa: S608 - names that are checked
        if self.snapshot_id is None:
            return typed
        held = ", ".join(_quoted(name) if name in self.has else f"NULL AS {_quoted(name)}" for name in names)
        found = f"SELECT {held} FROM {versions} WHERE {only} AND NOT {IS_DELETED}"  # noqa: S608
        return found if self.has >= set(names) else f"{typed} UNION ALL {found}"

    def read(self, numbers: Counters, columns: Collection[str]) -> pa.Table:
        """Columns of the versions with these `_updated`, which ascend.

        Raises:
            Terminal: a file of the table is gone or damaged.
        """
        table = iceberg.load_table((self.tenant.namespace, self.log.dataset.slug), self.log.metadata_location)
        with readable.damage_explained(self.log.metadata_location):
            first = GreaterThanOrEqual(UPDATED, int(numbers[0]))  # type: ignore[call-arg,arg-type]
            last = LessThanOrEqual(UPDATED, int(numbers[-1]))  # type: ignore[call-arg,arg-type]
            scan = table.scan(row_filter=And(first, last), selected_fields=(UPDATED, *columns))
            batches = scan.to_arrow_batch_reader()
            wanted = pa.array(numbers)
            return pa.Table.from_batches(
                (batch.filter(pc.is_in(batch.column(UPDATED), wanted)) for batch in batches), batches.schema
            )


@dataclass(frozen=True)
class Pinned:
    """A query, and its sources at one moment."""

    query: Query
    sources: tuple[Source, ...]

    @property
    def sql(self) -> str:
        """Spark SQL of the result."""
        named = ", ".join(f"{_quoted(each.log.dataset.slug)} AS ({each.latest()})" for each in self.sources)
        return f"SELECT result.* FROM (WITH {named} ({self.query.text})) AS result"  # noqa: S608 - see `checked`

    @property
    def reads(self) -> list[str]:
        """What Spark's plan may read."""
        return [name for each in self.sources for name in each.reads]

    def source(self, slug: str) -> Source:
        """The source of a dataset."""
        return next(each for each in self.sources if each.log.dataset.slug == slug)

    def position(self, pipe: str) -> str:
        """The continuation of each source, and a hash of what else determines the result.

        Args:
            pipe: what identifies the result; a pipe of the same name may have brought another dataset.
        """
        told = [f"{each.log.dataset.slug} {each.log.generation}-{each.log.updated}" for each in self.sources]
        return f"{', '.join(told)} of {self._of(pipe)}"

    def since(self, pipe: str, position: str | None) -> Mapping[str, int] | None:
        """The places in the logs that a `position` names, by slug; None: it is of something else."""
        places, _, of = (position or "").rpartition(" of ")
        if of != self._of(pipe):
            return None
        found = {slug: place.split("-") for slug, place in map(str.split, places.split(", "))}
        if any(found[each.log.dataset.slug][0] != str(each.log.generation) for each in self.sources):
            return None
        return {slug: int(updated) for slug, (_, updated) in found.items()}

    def _of(self, pipe: str) -> str:
        said = [pipe, self.query.text]
        for each in self.sources:
            said += [str(each.log.dataset.dataset_id), repr(each.log.dataset.columns), repr(sorted(each.has))]
        return hashlib.sha256("\n".join(said).encode()).hexdigest()[:12]


def query_of(said: Definition) -> Query:
    """The checked query of a transform.

    Raises:
        UserError: it is not one SELECT over datasets, or has what the grammar of rollups does not allow.
    """
    assert isinstance(said.other_end, Transform)  # noqa: S101 - by `kinds`
    try:
        query = checked(said.other_end.transform, "transform")
    except RecursionError:
        raise UserError("the transform is nested too deeply", pipe=said.pipe) from None
    if not 1 <= len(query.tables) <= MOST:
        raise UserError(
            f"the transform reads {len(query.tables)} datasets: it may read 1 to {MOST}", pipe=said.pipe
        )
    return query


def pin(tenant: Tenant, query: Query) -> Pinned:
    """Pin the sources, all at one moment, in the tenant's session.

    Raises:
        NotFound: the tenant has no such dataset.
        Conflict: it is one of events.
        Terminal: files of it are gone or damaged.
    """

    def look() -> Sequence[CurrentLog]:
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id, one_snapshot=True) as connection:
            return [log_of(connection, tenant, slug) for slug in query.tables]

    def use(seen: Sequence[CurrentLog]) -> Pinned:
        return Pinned(query, tuple(_pinned(tenant, log) for log in seen))

    def location(seen: Sequence[CurrentLog]) -> str:
        return " ".join(log.metadata_location for log in seen)

    return readable.as_it_is(use, look(), look, location)


def _pinned(tenant: Tenant, log: CurrentLog) -> Source:
    table = iceberg.load_table((tenant.namespace, log.dataset.slug), log.metadata_location)
    readable.check_snapshot(table)  # Spark would silently compute from the files that it can read
    snapshot = table.current_snapshot()
    schema = table.schemas()[snapshot.schema_id] if snapshot and snapshot.schema_id is not None else None
    names = frozenset(field.name for field in (schema or table.schema()).fields)
    return Source(tenant, log, snapshot.snapshot_id if snapshot else None, names)


def refuse_cycles(said: Definition, others: Sequence[Definition]) -> None:
    """See that no dataset becomes, by way of transforms, a source of itself.

    Args:
        others: the tenant's pipes.

    Raises:
        Conflict: one would.
    """
    read_for = {
        other.dataset: query_of(other).tables for other in others if isinstance(other.other_end, Transform)
    }
    read_for[said.dataset] = query_of(said).tables
    seen: set[str] = set()
    waiting: list[tuple[str, ...]] = [(said.dataset,)]
    while waiting:
        way = waiting.pop()
        for source in read_for.get(way[-1], ()):
            if source == said.dataset:
                raise Conflict(
                    f"the dataset would be a source of itself: {' reads '.join((*way, source))}",
                    fix="Bring the result into another dataset",
                    pipe=said.pipe,
                )
            if source not in seen:
                seen.add(source)
                waiting.append((*way, source))


def sources_by_name() -> dict[str, set[str]]:
    """Slugs of the datasets that transforms read, by the names of the pipes of all tenants."""
    found: dict[str, set[str]] = {}
    for pipe in everyones():
        if isinstance(pipe.definition.other_end, Transform):
            try:
                found.setdefault(pipe.name, set()).update(query_of(pipe.definition).tables)
            except UserError:  # not allowed any more: its run says so
                continue
    return found


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
