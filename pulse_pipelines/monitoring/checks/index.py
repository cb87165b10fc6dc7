"""Check `index_equals_log`: the entries of a dataset's indexes match its log, by SQL."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulse_pipelines.entities import heads, index_entries, index_runs
from pulse_pipelines.entities.index_entries import Index
from pulse_pipelines.entities.index_runs import Counters
from pulse_pipelines.monitoring.checks.subject import CheckResult, Subject
from pulse_pipelines.query import duckdb_pool
from pulse_pipelines.tables.iceberg_schema import IS_DELETED, UPDATED
from pulse_resources import iceberg, postgres
from pulse_resources.iceberg import readable

Words = npt.NDArray[np.uint64]
SAMPLE = 200_000
"""Versions that are looked at, about: of so many entities, any others each time, all versions."""
INDEXES = "SELECT index_id, expression, updated, entries FROM entity_indexes WHERE dataset_id = %s"
STILL = """
SELECT l.generation FROM entity_logs l JOIN entity_indexes i USING (dataset_id) WHERE i.index_id = %s
"""
VERSIONS = f"""
SELECT {UPDATED}, coalesce(lag({UPDATED}) OVER (PARTITION BY id ORDER BY {UPDATED}), 0), {{values}}
FROM versions WHERE hash(id) % ? = ? ORDER BY 1
"""  # noqa: S608 - from constants


@dataclass(frozen=True)
class _StoredIndex:
    """An index as Postgres has it."""

    index: Index
    covered: int
    count: int


@dataclass(frozen=True, eq=False)
class _Stored:
    """What an index has of a sample of versions."""

    generation: int
    """The generation of its log."""
    digests: Words
    """Four rows: heads and tails of the new values, heads and tails of the old ones."""
    count: int
    """Entries, of all versions."""


@dataclass(frozen=True)
class _IndexSnapshot:
    """A log's table, its indexes and their entries, read at the same moment."""

    location: str
    generation: int
    updated: int
    indexes: Sequence[_StoredIndex]


def index_equals_log(subject: Subject) -> CheckResult:
    """Compare the entries of a sample of entities with those that their versions give; whole tables only."""
    if not subject.dataset.of_entities or subject.scope.batch_id is not None:
        return CheckResult()
    read = partial(_read, subject)
    return readable.as_it_is(partial(_compare, subject), read(), read, lambda snapshot: snapshot.location)


def _read(subject: Subject) -> _IndexSnapshot:
    tenant, dataset = subject.tenant, subject.dataset
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id, one_snapshot=True) as connection:
        location = iceberg.current_location(connection, (tenant.namespace, dataset.slug))
        ((generation, updated),) = connection.execute(heads.LOG, [dataset.dataset_id]).fetchall()
        rows = connection.execute(INDEXES, [dataset.dataset_id])
        indexes = [_StoredIndex(Index(number, text), covered, count) for number, text, covered, count in rows]
    return _IndexSnapshot(location, generation, updated, indexes)


def _compare(subject: Subject, snapshot: _IndexSnapshot) -> CheckResult:
    result = CheckResult({"indexes": len(snapshot.indexes)})
    fitting = [stored_index for stored_index in snapshot.indexes if stored_index.index.fits(subject.dataset)]
    result.problems += [
        f"the index by {stored_index.index.expression} is by what the dataset does not have: drop it"
        for stored_index in snapshot.indexes
        if stored_index not in fitting
    ]
    if not fitting:
        return result
    parts = max(1, snapshot.updated // SAMPLE)
    versions = _versions(subject, snapshot, [stored_index.index for stored_index in fitting], parts)
    result.numbers["versions"] = versions.num_rows
    updated = versions.column(0).to_numpy()
    for number, stored_index in enumerate(fitting):
        expected = _expected(subject, versions, number, stored_index.covered)
        stored = _stored(subject, stored_index, updated)
        if stored is None:  # it was dropped
            continue
        if stored.generation != snapshot.generation:  # something was erased
            return _compare(subject, _read(subject))
        different_versions = int(((expected != stored.digests).any(axis=0)).sum())
        count = int((expected.reshape(2, 2, -1) != 0).any(axis=1).sum())
        if different_versions:
            result.problems.append(
                f"of {len(updated)} versions {different_versions} have other values in the index by "
                f"{stored_index.index.expression} than their log gives"
            )
        if stored.count != stored_index.count or (parts == 1 and stored.count != count):
            result.problems.append(
                f"the index by {stored_index.index.expression} has {stored.count} values, "
                f"{stored_index.count} by its own count"
                + (f", and the log gives {count}" if parts == 1 else "")
            )
    return result


def _versions(subject: Subject, snapshot: _IndexSnapshot, by: Sequence[Index], parts: int) -> pa.Table:
    """All versions of some entities: `_updated`, that of the version before, and a value by index."""
    expressions = [index.of(subject.dataset) for index in by]
    columns = {"id", UPDATED, IS_DELETED}.union(*(expression.columns for expression in expressions))
    values = ", ".join(f"CASE WHEN NOT {IS_DELETED} THEN {expression.sql} END" for expression in expressions)
    with readable.damage_explained(snapshot.location):
        table = iceberg.load_table((subject.tenant.namespace, subject.dataset.slug), snapshot.location)
        reader = table.scan(selected_fields=tuple(columns)).to_arrow_batch_reader()
    with duckdb_pool.connect() as connection:
        connection.register("versions", reader)
        try:
            query = VERSIONS.format(values=values)
            return connection.execute(query, [parts, secrets.randbelow(parts)]).to_arrow_table()
        finally:
            connection.unregister("versions")


def _expected(subject: Subject, versions: pa.Table, number: int, covered: int) -> Words:
    """What the log gives, as `_Stored.digests`."""
    updated, before = (versions.column(n).to_numpy() for n in (0, 1))
    new = index_entries.digests(versions.column(2 + number).to_pylist(), subject.dataset)
    digests = np.zeros((4, len(updated)), np.uint64)
    digests[0], digests[1] = new.heads, new.tails
    again = np.flatnonzero(before > 0)
    digests[2:, again] = digests[:2, np.searchsorted(updated, before[again])]
    digests[2:, (digests[:2] == digests[2:]).all(axis=0)] = 0
    digests[:, updated > covered] = 0
    return digests


def _stored(subject: Subject, stored_index: _StoredIndex, updated: Counters) -> _Stored | None:
    """What the index has of versions; None: it is gone."""
    digests, after, count = np.zeros((4, len(updated)), np.uint64), 0, 0
    index_id, tenant_id = stored_index.index.index_id, subject.tenant.tenant_id
    with postgres.tenant_transaction("pulse_pipeline", tenant_id, one_snapshot=True) as connection:
        row = connection.execute(STILL, [index_id]).fetchone()
        while after < stored_index.covered and (runs := index_runs.runs(connection, index_id, after, 1)):
            run = runs[0][
                : stored_index.covered - runs[0].first + 1
            ]  # what was written since the look is left out
            after = run.first + len(run) - 1
            count += run.entries
            begin, end = np.searchsorted(updated, [run.first, after + 1])
            at = updated[begin:end] - run.first
            columns = (run.new.heads, run.new.tails, run.old.heads, run.old.tails)
            digests[:, begin:end] = [column[at] for column in columns]
    return _Stored(row[0], digests, count) if row else None
