"""Indexes of entities: for each value of an expression, the versions at which entities gain or lose it.

Of each version of a log an index has two digests: of the value that its entity has, and of the value that the
entity had before, if that is another one; zeros stand for none. So both the old and the new value of a
changed entity lead to the version, and the versions with a value in one of the two are the log of its subset.

They are in runs (`index_runs`), which are written by the transaction that lands the versions (`advance`). A
new index is brought up to the log by `entities.index_build`; until then it is behind, and batches leave it as
it is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.expressions.compiler import Expression, expression
from pulse_pipelines.entities import index_runs
from pulse_pipelines.entities.index_runs import Counters, Run, Values
from pulse_pipelines.tables.digests import Digests
from pulse_pipelines.tables.iceberg_schema import IS_DELETED, UPDATED
from pulse_resources import postgres
from pulse_resources.errors import UserError
from pulse_resources.process.faults import fail_point

CURRENT = """
SELECT index_id, expression FROM entity_indexes WHERE dataset_id = %s AND updated = %s ORDER BY index_id
"""
# No row: the index was dropped, or somebody else has brought it further.
ADVANCE = """
UPDATE entity_indexes SET updated = %(after)s, entries = entries + %(entries)s
WHERE index_id = %(index)s AND updated = %(before)s
"""
OF_DATASET = "SELECT index_id FROM entity_indexes WHERE dataset_id = %s ORDER BY index_id FOR UPDATE"
WITH_VERSIONS = """
SELECT first, packed FROM entity_index_runs r WHERE index_id = %s AND EXISTS (
    SELECT FROM unnest(%s::bigint[]) AS v (updated)
    WHERE v.updated BETWEEN r.first AND r.first + r.versions - 1)
"""
CHANGE = "UPDATE entity_index_runs SET packed = %s WHERE index_id = %s AND first = %s"
COUNT = "UPDATE entity_indexes SET entries = entries - %s WHERE index_id = %s"


@dataclass(frozen=True)
class Index:
    index_id: int
    expression: str

    def fits(self, dataset: Dataset) -> bool:
        """Whether the dataset has the columns of its expression."""
        try:
            self.of(dataset)
        except UserError:
            return False
        return True

    def of(self, dataset: Dataset) -> Expression:
        """Its expression over the dataset's columns. Raises UserError."""
        return expression(self.expression, dataset.columns)


@dataclass(frozen=True, eq=False)
class Indexed:
    """An index that a batch maintains."""

    index: Index
    old: Digests
    """For each version of the batch, its entity's preceding value, if an earlier batch has it."""


def digests(values: Sequence[str | None], dataset: Dataset) -> Digests:
    """The digests of values, zeros for none, under the dataset's secret seed: no value can be guessed."""
    present = np.array([value is not None for value in values], np.bool_)
    digests_of_values = index_runs.none(len(values))
    some = Digests.of([value for value in values if value is not None], dataset.claim_seed)
    digests_of_values.heads[present], digests_of_values.tails[present] = some.heads, some.tails
    return digests_of_values


def values(rows: pa.Table, by: Expression, dataset: Dataset) -> Values:
    """The values of versions.

    Args:
        rows: with `_updated`, `_is_deleted`, and the columns that the expression reads.
        by: the expression.
    """
    return Values(rows.column(UPDATED).to_numpy(), digests(texts(rows, by), dataset))


def texts(rows: pa.Table, by: Expression) -> list[str | None]:
    """The values of versions as texts; of a deletion None. The arguments are those of `values`."""
    read = rows.select([IS_DELETED, *sorted(by.columns)]).to_pylist()
    return [None if row[IS_DELETED] else by.of(row) for row in read]


def current(connection: postgres.Connection, dataset: Dataset, updated: int) -> tuple[Index, ...]:
    """The indexes of a log that have all of its versions, read in the session of its tenant.

    An index by a property of a newer schema than the dataset is seen with is left out: it falls behind.
    """
    indexes = postgres.select(connection, Index, CURRENT, [dataset.dataset_id, updated])
    return tuple(index for index in indexes if index.fits(dataset))


def advance(
    connection: postgres.Connection,
    tenant_id: UUID,
    index_id: int,
    before: int,
    previous: Counters,
    old: Digests,
    added: Iterable[Values],
) -> bool:
    """Write the entries of versions; False: the index was dropped or has moved on, and nothing was written.

    To be called in the transaction that lands the versions, after `heads.advance`; or by whoever builds the
    index.

    Args:
        before: `_updated` of the last version that the index has.
        previous: of each version after it, in their order, `_updated` of its entity's version before.
        old: of each the value of that version (`index_runs.values_at`), if the index had it before.
        added: values of the versions.
    """
    run = index_runs.build_run(before, previous, old, added)
    place = {"index": index_id, "before": before, "after": before + len(previous), "entries": run.entries}
    fail_point("indexes.before_advance")
    if connection.execute(ADVANCE, place).rowcount != 1:
        return False
    index_runs.append(connection, tenant_id, index_id, run)
    fail_point("indexes.after_advance")
    return True


def forget(
    connection: postgres.Connection, dataset_id: UUID, erased: Sequence[int], following: Sequence[int]
) -> None:
    """Remove the values of versions, in the transaction that removes these from the log.

    Args:
        erased: `_updated` of the versions.
        following: of versions that stay, and follow one of these: their old value goes, too.
    """
    for (index_id,) in connection.execute(OF_DATASET, [dataset_id]).fetchall():
        runs: Any = connection.execute(WITH_VERSIONS, [index_id, [*erased, *following]], binary=True)
        for first, packed in runs.fetchall():
            before = Run.unpacked(first, packed)
            after = Run.unpacked(first, bytearray(packed))
            places = np.arange(first, first + len(before))
            erased_places = np.isin(places, erased)
            for column in (after.new.heads, after.new.tails):
                column[erased_places] = 0
            for column in (after.old.heads, after.old.tails):
                column[erased_places | np.isin(places, following)] = 0
            connection.execute(CHANGE, [after.packed(), index_id, first])
            connection.execute(COUNT, [before.entries - after.entries, index_id])
