"""Building of an index from the versions in the log, until batches maintain it.

Each version's predecessor is found from the ids of the whole log, 24 bytes a version; values are then read
and written a piece at a time. Every piece is a transaction of its own, which holds the log: a batch or an
erasure comes before it or after it. A build that ends halfway is continued by the next.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import And, GreaterThan, LessThanOrEqual

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import index_entries, index_runs
from pulse_pipelines.entities.index_entries import Index
from pulse_pipelines.entities.index_runs import Counters, Values
from pulse_pipelines.registry.table_lookup import CurrentLog, current_log, log_of
from pulse_pipelines.tables.digests import Digests
from pulse_pipelines.tables.iceberg_schema import IS_DELETED, UPDATED
from pulse_resources import iceberg, postgres
from pulse_resources.iceberg import readable
from pulse_resources.process.faults import fail_point

PIECE = 50_000
"""Versions of one transaction."""
PATIENCE = 3
"""Times that the last piece is read beside batches; after that they wait for it."""
INDEX = "SELECT expression, updated FROM entity_indexes WHERE index_id = %s"
HOLD = """
SELECT l.generation FROM entity_logs l JOIN entity_indexes i USING (dataset_id) WHERE i.index_id = %s
FOR SHARE OF l
"""


@dataclass(frozen=True)
class _Piece:
    """Versions that the index does not have, with what they add to it."""

    log: CurrentLog
    after: int
    previous: Counters
    values: Values


def build(
    tenant: Tenant,
    slug: str,
    index_id: int,
    progress: Callable[[int, int], None] = lambda done, of: None,
    seconds: float = math.inf,
) -> None:
    """Bring an index up to its log; returns early if it is dropped meanwhile, or if time is up.

    Args:
        seconds: no piece but the first begins after this long.
        told: called with the number of versions that the index has, and that the log has.

    Raises:
        UserError: the index is by something that the dataset does not have.
        NotFound, Conflict: the dataset is gone.
        Terminal: a file of the table is gone or damaged.
        OSError: the object store failed.
    """
    predecessors, tails, until = _Predecessors(), 0, time.monotonic() + seconds
    while (step := _step(tenant, slug, index_id, predecessors, lock_log=tails >= PATIENCE)) is not None:
        progress(*step)
        tails += step[1] - step[0] <= PIECE
        if time.monotonic() > until:
            return


def _step(
    tenant: Tenant, slug: str, index_id: int, predecessors: "_Predecessors", *, lock_log: bool
) -> tuple[int, int] | None:
    """Add a piece; returns where index and log were before, or None if there was nothing to add.

    Args:
        held: whether the log is held while the piece is read.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        if lock_log:
            connection.execute(HOLD, [index_id])
        row = connection.execute(INDEX, [index_id]).fetchone()
        log = log_of(connection, tenant, slug)
        if row is None or row[1] >= log.updated:
            return None
        index, after = Index(index_id, row[0]), row[1]
        if lock_log:
            _write(connection, tenant, index, _read(tenant, log, index, after, predecessors))
            return after, log.updated
    piece = _read(tenant, log, index, after, predecessors)
    fail_point("index_build.read")
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        _write(connection, tenant, index, piece)
    return after, log.updated


def _read(tenant: Tenant, log: CurrentLog, index: Index, after: int, predecessors: "_Predecessors") -> _Piece:
    reload = partial(current_log, tenant, log.dataset.slug)

    def read(current: CurrentLog) -> _Piece:
        predecessors.read(tenant, replace(log, metadata_location=current.metadata_location))
        last = min(after + PIECE, log.updated)
        by = index.of(log.dataset)
        rows = _rows(tenant, current, after, last, (IS_DELETED, *by.columns))
        return _Piece(log, after, predecessors.of(after, last), index_entries.values(rows, by, log.dataset))

    return readable.as_it_is(read, log, reload, lambda current: current.metadata_location)


def _write(connection: postgres.Connection, tenant: Tenant, index: Index, piece: _Piece) -> None:
    """Add a piece, unless the log was rebuilt since or the index is elsewhere: then the next step sees it."""
    row = connection.execute(HOLD, [index.index_id]).fetchone()
    if row == (piece.log.generation,):
        earlier = np.where(piece.previous > piece.after, 0, piece.previous)
        old = index_runs.values_at(connection, index.index_id, earlier)
        where = (connection, tenant.tenant_id, index.index_id)
        index_entries.advance(*where, piece.after, piece.previous, old, [piece.values])


def _rows(tenant: Tenant, log: CurrentLog, after: int, last: int, columns: Iterable[str]) -> pa.Table:
    """Columns of the versions with `after` < `_updated` <= `last`."""
    with readable.damage_explained(log.metadata_location):
        table = iceberg.load_table((tenant.namespace, log.dataset.slug), log.metadata_location)
        within = And(GreaterThan(UPDATED, after), LessThanOrEqual(UPDATED, last))  # type: ignore[call-arg,arg-type]
        return table.scan(row_filter=within, selected_fields=(UPDATED, *columns)).to_arrow()


class _Predecessors:
    """For each version of a log, the preceding version of its entity."""

    def __init__(self) -> None:
        self._generation: int | None = None
        self._forget()

    def _forget(self) -> None:
        self._ids, self._updated, self._last = Digests.joined([]), np.empty(0, np.int64), 0

    def read(self, tenant: Tenant, log: CurrentLog) -> None:
        """Read the ids of the versions in the log."""
        if log.generation != self._generation:
            self._forget()
            self._generation = log.generation
        if self._last == log.updated:
            return
        rows = _rows(tenant, log, self._last, log.updated, ("id",))
        ids = Digests.of(rows.column("id"), log.dataset.claim_seed)
        self._ids = Digests.joined([self._ids, ids])
        self._updated = np.concatenate([self._updated, rows.column(UPDATED).to_numpy()])
        self._last = log.updated
        order = self._ids.order(then=self._updated)
        ordered = self._updated[order]
        self._before: Counters = np.zeros(self._last + 1, np.int64)
        self._before[ordered] = np.where(self._ids[order].repeats(), np.roll(ordered, 1), 0)

    def of(self, after: int, last: int) -> Counters:
        """The greatest among the versions with `after` < `_updated` <= `last`; 0: none."""
        return self._before[after + 1 : last + 1]
