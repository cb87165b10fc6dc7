"""Building of a state from the events in the table, while batches keep it up to date.

Pieces of the table's files are merged one after the other, each in a transaction of its own: merging what is
there already changes nothing. A build counts only if the state came to lack nothing else meanwhile: after an
erasure it begins again, on the table as it is then. The next build repeats one that ended halfway. Windows
are built after it (`window_build`).
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry.datasets import find_dataset
from pulse_pipelines.states import state_keys, table_rows, window_build
from pulse_pipelines.tables import arrow_columns, dataset_rows
from pulse_resources import iceberg, postgres
from pulse_resources.iceberg import readable
from pulse_resources.process.faults import fail_point

LACKS = "SELECT marks FROM event_states WHERE dataset_id = %s AND built < marks"
HOLD = """
SELECT max_keys - keys FROM event_states
WHERE dataset_id = %s AND state_id = %s AND marks = %s FOR NO KEY UPDATE
"""
BUILT = "UPDATE event_states SET built = marks WHERE dataset_id = %s AND state_id = %s AND marks = %s"


@dataclass(frozen=True)
class _Gap:
    """The rows that a state lacks, and the table that has them, read in one transaction."""

    dataset: Dataset
    location: str
    """Location of the table's metadata; empty: the state lacks nothing, or there is none."""
    marks: int


def build(
    tenant: Tenant,
    slug: str,
    report_progress: Callable[[int, int], None] = lambda done, of: None,
    seconds: float = math.inf,
) -> None:
    """Build a dataset's state, and its windows, until they lack nothing; returns early if it is dropped, or
    if time is up.

    Args:
        report_progress: called with the number of files read, and of all files.
        seconds: no piece begins after this long.

    Raises:
        NotFound: the tenant has no such dataset.
        Terminal: a file of the table is gone or damaged, or another engine wrote delete files.
        OSError: the object store failed.
    """
    until = time.monotonic() + seconds
    read_gap = partial(_read_gap, tenant, slug)
    while (gap := read_gap()).location:
        if readable.as_it_is(
            partial(_read, tenant, report_progress, until), gap, read_gap, lambda gap: gap.location
        ):
            break
    window_build.build(tenant, slug, report_progress, until - time.monotonic())


def _read_gap(tenant: Tenant, slug: str) -> _Gap:
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id, one_snapshot=True) as connection:
        for dataset in dataset_rows.read(connection, dataset_rows.OF_SLUG, [slug]):
            row = connection.execute(LACKS, [dataset.dataset_id]).fetchone()
            location = iceberg.current_location(connection, (tenant.namespace, slug)) if row else ""
            return _Gap(dataset, location, row[0] if row else 0)
    return _Gap(find_dataset(tenant, slug), "", 0)


def _read(tenant: Tenant, report_progress: Callable[[int, int], None], until: float, gap: _Gap) -> bool:
    """Merge all that a table has; False: the state is another one by now, or lacks more."""
    if not gap.location:
        return True
    dataset = gap.dataset
    files = table_rows.files(tenant, dataset, gap.location)
    schema = arrow_columns.arrow_schema(dataset.table_schema)
    for number, file in enumerate(files):
        report_progress(number, len(files))
        for rows in table_rows.pieces(file, schema):
            if time.monotonic() > until:
                return True
            frame = state_keys.frame(dataset, rows)
            fail_point("state_build.read")
            if frame is None or not _merge(tenant, gap, frame.packed):
                return False
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return connection.execute(BUILT, _place(gap)).rowcount == 1


def _merge(tenant: Tenant, gap: _Gap, packed: bytes) -> bool:
    """Merge a piece, unless the state came to lack more since: an erasure may have removed some of it."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        row = connection.execute(HOLD, _place(gap)).fetchone()
        if row is None:
            return False
        state_keys.merge(connection, tenant.tenant_id, gap.dataset.dataset_id, row[0], [packed])
    return True


def _place(gap: _Gap) -> list[object]:
    state_id = None if gap.dataset.state is None else gap.dataset.state[0]
    return [gap.dataset.dataset_id, state_id, gap.marks]
