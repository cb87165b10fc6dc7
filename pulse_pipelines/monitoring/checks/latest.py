"""Check `latest_equals_log`: the heads of an entity dataset match its log, which has no gap."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.entities import heads
from pulse_pipelines.entities.heads import Heads, Log
from pulse_pipelines.monitoring.checks.subject import CheckResult, Subject
from pulse_pipelines.tables import live_table
from pulse_pipelines.tables.digests import Digests
from pulse_pipelines.tables.iceberg_schema import HASH, UPDATED
from pulse_resources import iceberg, object_store, postgres
from pulse_resources.errors import Terminal
from pulse_resources.iceberg import readable

ERASED = """
SELECT coalesce(-sum(l.rows), 0)::bigint FROM landings l
JOIN erasures e ON e.tenant_id = l.tenant_id AND e.erasure_id = l.batch_id WHERE l.dataset_id = %s
"""


class _LogSnapshot(NamedTuple):
    """A log and its table, read at the same moment."""

    log: Log
    location: str
    erased: int
    """Versions removed by erasures; the heads of their entities remain."""


def latest_equals_log(subject: Subject) -> CheckResult:
    """Compare every version with the heads that the next batch will use; whole tables only."""
    result = CheckResult()
    if not subject.dataset.of_entities or subject.scope.batch_id is not None:
        return result
    read = partial(_read, subject)
    return readable.as_it_is(partial(_compare, subject), read(), read, lambda snapshot: snapshot.location)


def _read(subject: Subject) -> _LogSnapshot:
    tenant, dataset = subject.tenant, subject.dataset
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id, one_snapshot=True) as connection:
        log = heads.log(connection, dataset.dataset_id)
        location = iceberg.current_location(connection, (tenant.namespace, dataset.slug))
        ((erased,),) = connection.execute(ERASED, [dataset.dataset_id]).fetchall()
    if log is None:
        raise Terminal("the dataset has no log", tenant=tenant.slug, dataset=dataset.slug)
    return _LogSnapshot(log, location, erased)


def _compare(subject: Subject, snapshot: _LogSnapshot) -> CheckResult:
    table = iceberg.load_table((subject.tenant.namespace, subject.dataset.slug), snapshot.location)
    dataset, files = subject.dataset, live_table.live_files(table)
    versions = list(_versions(dataset, files, dataset.later_columns))
    updated = np.sort(np.concatenate([np.empty(0, np.int64), *(part.updated for part in versions)]))
    log, result = snapshot.log, CheckResult({"versions": len(updated)})
    distinct = np.unique(updated)
    within = distinct[(distinct > 0) & (distinct <= log.updated)]
    if not len(within) == len(updated) == log.updated - snapshot.erased:
        result.problems.append(
            f"the log is at {log.updated}, {snapshot.erased} of which were erased, and the table has "
            f"{len(updated)} versions, {len(within)} of them with places of their own"
        )
    by_rows, by_heads = (Heads.newest(parts) for parts in (versions, [run for _, run in log.runs]))
    result.numbers["entities"] = len(by_rows)
    rows, by_log = (set(_identities(newest)) for newest in (by_rows, by_heads))
    if rows - by_log and dataset.later_columns:
        # A head from before version 0.8 has the content hash alone as its state.
        by_content = _identities(Heads.newest(_versions(dataset, files)))
        pairs = zip(_identities(by_rows), by_content, strict=True)
        rows = {state if state in by_log else content for state, content in pairs}
    ids = {head[:2] for head in rows}
    idle = {head for head in by_log - rows if head[:2] not in ids}  # heads of entities without a version
    if rows - by_log or by_log - rows - idle or len(idle) > snapshot.erased:
        result.problems.append(
            f"of {len(rows)} entities {len(rows - by_log)} are not known as the log has them, and "
            f"{len(by_log - rows)} are known that the log has not"
        )
    return result


def _identities(of: Heads) -> list[tuple[int, ...]]:
    ids, states = of.ids, of.states
    columns = (ids.heads, ids.tails, states.heads, states.tails, of.updated)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _versions(dataset: Dataset, files: Iterable[str], later: Sequence[str] = ()) -> Iterator[Heads]:
    for path in files:
        with object_store.file_system().open_input_file(object_store.key(path)) as content:
            try:
                file = pq.ParquetFile(content)
                existing = [name for name in later if name in file.schema_arrow.names]
                rows = file.read(columns=["id", UPDATED, HASH, *existing])
            except pa.ArrowInvalid as error:
                raise Terminal(f"a file of the table is damaged: {error}", file=path) from error
        ids = Digests.of(rows.column("id"), dataset.claim_seed)
        yield Heads(ids, heads.states(rows, later), rows.column(UPDATED).to_numpy())
