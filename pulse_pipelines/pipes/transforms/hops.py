"""Hops: the entities of a transform to which changes of its sources lead, since its last settled run.

Each change of the FROM dataset leads to the entity itself. A change of a joined one leads to the rows that
its keys are joined to, those of all its versions since then and of the one before: an index has both. Where a
joined dataset is joined by another one, the rows of the first that the second leads to lead on in turn.

The target is then what a whole computation would give, because it was before: the last run that compared all
of it has settled, with its deletions, and so has all that came after it. Whatever is not certain is computed
whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pyspark.sql.types import StructField

from pulse_pipelines import registry
from pulse_pipelines.entities import heads, index_build, index_runs, indexes
from pulse_pipelines.entities.heads import Heads
from pulse_pipelines.entities.index_entries import digests, texts
from pulse_pipelines.entities.index_runs import Counters
from pulse_pipelines.pipes.registry import Pipe
from pulse_pipelines.pipes.transforms import columns
from pulse_pipelines.pipes.transforms.shape import BY_ID, Hop, Shape, Side, Whole, shape_of
from pulse_pipelines.pipes.transforms.sources import ID, Entities, Events, Pinned
from pulse_pipelines.tables.digests import Digests
from pulse_pipelines.tables.iceberg_schema import IS_DELETED, UPDATED
from pulse_resources import postgres
from pulse_resources.errors import QuotaExceeded

SHARE = 1 / 3
"""Share of the target's entities: if changes lead to more, all are computed ..."""
FEW = 1_000
"""... unless it has at most this many."""
# Of the syncs since the one by which the pipe last compared everything: whether all of that holds, and
# whether rows of a run that failed may be on their way.
SINCE = """
SELECT coalesce(bool_and(pipe IS NOT DISTINCT FROM %(pipe)s
        AND (settled_at IS NULL OR state = 'done' AND refused = 0)), false),
    coalesce(bool_or(settled_at IS NULL AND sync_id > settled), false)
FROM entity_syncs, (
    SELECT max(sync_id) FILTER (WHERE is_full) AS compared, max(sync_id) AS settled FROM entity_syncs
    WHERE dataset_id = %(dataset)s AND pipe = %(pipe)s AND settled_at IS NOT NULL) last
WHERE dataset_id = %(dataset)s AND sync_id >= compared
"""
INDEX = "SELECT index_id FROM entity_indexes WHERE dataset_id = %s AND expression = %s AND updated >= %s"


class ThisTime(Whole):
    """The reason why one run computes a transform whole, which other runs need not."""

    WHEN = "all this time"


class Moved(Exception):  # noqa: N818 - an answer, no error
    """A source has changed since it was pinned."""


@dataclass(frozen=True)
class All:
    """The whole result."""

    pinned: Pinned
    numbers: None = None

    def sql(self, fields: Sequence[StructField], _: str) -> str:
        """Spark SQL of the result; the arguments are those of `Touched`."""
        return columns.written(fields, self.pinned.sql)

    def deleted_ids(self, _: Sequence[str]) -> list[str]:
        """No ids: a full sync deletes missing entities itself."""
        return []


@dataclass(frozen=True, eq=False)
class Touched:
    """The entities of the FROM dataset that changes lead to, each once."""

    shape: Shape
    pinned: Pinned
    numbers: Counters
    """`_updated` of the newest version of each, ascending; deletions are among them."""
    target: heads.Log
    seed: int
    certain: bool
    """Whether the target has all that earlier runs sent."""

    def sql(self, fields: Sequence[StructField], numbers: str) -> str:
        """Spark SQL of their rows in the result, as `columns.with_ids` has them.

        Args:
            fields: of the result.
            numbers: name of a view of `numbers`, in the column `n`.
        """
        between = f"{UPDATED} BETWEEN {self.numbers[0]} AND {self.numbers[-1]}"  # by which files are left out
        these = f"{between} AND {UPDATED} IN (SELECT n FROM {numbers})"  # noqa: S608 - numbers, and a name
        source = self.pinned.entities(next(iter(self.shape.slugs.values())))
        named = [source.rows(source.at, these), *map(self._joined, self.shape.hops)]
        tables = ", ".join(f"_{number} AS ({rows})" for number, rows in enumerate(named))
        result = f"SELECT result.* FROM (WITH {tables} ({self.shape.text})) AS result"  # noqa: S608
        ids = f"SELECT {ID} FROM {source.at} WHERE {these}"  # noqa: S608
        return columns.with_ids(columns.written(fields, result), ids)

    def _joined(self, hop: Hop) -> str:
        """The rows of a joined dataset that can be joined to those before it."""
        source = self.pinned.entities(self.shape.slugs[hop.on.alias])
        values = f"SELECT {hop.to.sql} FROM {self.shape.name_of(hop.to.alias)} AS `{hop.to.alias}`"  # noqa: S608
        if hop.on.by.text == BY_ID:
            return source.latest(f"{ID} IN ({values})")
        rows = source.rows(source.at, "true")
        having = f"SELECT {ID} FROM ({rows}) AS `{hop.on.alias}` WHERE {hop.on.sql} IN ({values})"  # noqa: S608
        return source.latest(f"{ID} IN ({having})")

    def deleted_ids(self, ids: Sequence[str]) -> list[str]:
        """Those of some ids without a row that the target has, or may come to have."""
        if not self.certain or not ids:
            return list(ids)
        states, _ = self.target.find_states(Digests.of(ids, self.seed))
        return [id_ for id_, none in zip(ids, states.is_zero(), strict=True) if not none]


def shape(pinned: Pinned) -> Shape:
    """The shape of a query over pinned sources. Raises Whole: it has none."""
    for source in pinned.sources:
        if isinstance(source, Events):
            raise Whole(f"{source.dataset.slug} is a dataset of events")
    return shape_of(pinned.query, {source.dataset.slug: source.dataset for source in pinned.sources})


def touched(pipe: Pipe, pinned: Pinned) -> Touched:
    """The part of the result to which the changes of pinned sources lead.

    Raises:
        Moved: pin them again.
        Whole: all of the result has to be computed.
    """
    query_shape = shape(pinned)
    _prepare(pipe, pinned, query_shape)
    since = pinned.since(str(pipe.dataset_id), pipe.position)
    if since is None:
        raise ThisTime(
            "no run has settled yet, or a full run was requested"
            if pipe.position is None
            else "the query, a schema or a log is another one than in the last run"
        )
    with postgres.tenant_transaction(
        "pulse_pipeline", pipe.tenant.tenant_id, one_snapshot=True
    ) as connection:
        ((holds, lost),) = connection.execute(
            SINCE, {"dataset": pipe.dataset_id, "pipe": pipe.name}
        ).fetchall()
        if not holds:
            raise ThisTime("deletions are open, rows were refused, or another client sent a sync")
        target = heads.log(connection, pipe.dataset_id)
        if target is None:
            raise Moved
        numbers = _Search(connection, pinned, query_shape, since).numbers()
    alive = int((~Heads.newest(run for _, run in target.runs).states.is_zero()).sum())
    if len(numbers) > max(FEW, SHARE * alive):
        raise ThisTime(f"changes lead to {len(numbers):,} ids, and it has {alive:,}")
    seed = registry.find_dataset(pipe.tenant, pipe.dataset).claim_seed
    return Touched(query_shape, pinned, numbers, target, seed, not lost)


def _prepare(pipe: Pipe, pinned: Pinned, shape: Shape) -> None:
    """Have the indexes that the joins imply, up to date with the pinned logs or beyond."""
    for slug, expression in shape.indexes:
        log = pinned.entities(slug).log
        try:
            index = indexes.declare(pipe.tenant, slug, expression, pipe=pipe.name)
        except QuotaExceeded:
            raise ThisTime(f"{slug} has no room for an index by {expression}") from None
        if index.updated < log.updated:
            index_build.build(pipe.tenant, slug, index.index_id)


@dataclass(frozen=True)
class _Search:
    """The search for what changes lead to, in one snapshot of Postgres."""

    connection: postgres.Connection
    pinned: Pinned
    shape: Shape
    since: Mapping[str, int]
    _logs: dict[str, heads.Log] = field(default_factory=dict)

    def numbers(self) -> Counters:
        """`_updated` of the newest version of each entity of the FROM dataset that changes lead to."""
        led = {alias: np.empty(0, np.int64) for alias in self.shape.slugs}
        for hop in reversed(self.shape.hops):
            values = self._changed(hop.on) | self._values(hop.on, led[hop.on.alias])
            led[hop.to.alias] = np.union1d(led[hop.to.alias], self._having(hop.to, values))
        first, slug = next(iter(self.shape.slugs.items()))
        newest = Heads.newest(run for _, run in self._log(slug).runs).updated
        return np.sort(newest[(newest > self.since[slug]) | np.isin(newest, led[first])])

    def _changed(self, side: Side) -> set[str]:
        """The values that entities have or had since the last run, the one before included."""
        source, since = self._source(side), self.since[self.shape.slugs[side.alias]]
        if since == source.log.updated:
            return set()
        if side.by.text == BY_ID:
            return self._values(side, np.arange(since + 1, source.log.updated + 1))
        changed_digests = index_runs.of_changes(self.connection, self._index(side), since)
        numbers, matching = index_runs.with_values(self.connection, self._index(side), changed_digests)
        values = self._values(
            side, numbers[np.unique(matching.places_in(changed_digests), return_index=True)[1]]
        )
        if len(values) < len(changed_digests):
            raise ThisTime(f"the index of {source.log.dataset.slug} by {side.by.text} lacks values")
        return values

    def _values(self, side: Side, numbers: Counters) -> set[str]:
        """The values of versions."""
        if not len(numbers):
            return set()
        if side.by.text == BY_ID:  # of deletions, too
            return set(self._source(side).read(np.sort(numbers), {ID}).column(ID).to_pylist())
        rows = self._source(side).read(np.sort(numbers), {IS_DELETED, *side.by.columns})
        return {text for text in texts(rows, side.by) if text is not None}

    def _having(self, side: Side, values: set[str]) -> Counters:
        """`_updated` of versions that have one of these values."""
        source = self._source(side)
        value_digests = digests(list(values), source.log.dataset).run()
        if side.by.text == BY_ID:
            numbers = self._log(source.log.dataset.slug).find_states(value_digests)[1]
            return numbers[numbers > 0]
        return index_runs.with_values(self.connection, self._index(side), value_digests)[0]

    def _source(self, side: Side) -> Entities:
        return self.pinned.entities(self.shape.slugs[side.alias])

    def _index(self, side: Side) -> int:
        log = self._source(side).log
        row = self.connection.execute(INDEX, [log.dataset.dataset_id, side.by.text, log.updated]).fetchone()
        if row is None or not side.by.columns <= self._source(side).has:
            raise ThisTime(f"the index of {log.dataset.slug} by {side.by.text} is behind")
        return int(row[0])

    def _log(self, slug: str) -> heads.Log:
        if slug not in self._logs:
            pinned = self.pinned.entities(slug).log
            log = heads.log(self.connection, pinned.dataset.dataset_id)
            if log is None or (log.generation, log.updated) != (pinned.generation, pinned.updated):
                raise Moved
            self._logs[slug] = log
        return self._logs[slug]
