"""Building of a state: from the events that are in the table already, while batches keep it.

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
class _Seen:
    """What a state lacks, and the table that has it, read at one moment."""

    dataset: Dataset
    location: str
    """Location of the table's metadata; empty: the state lacks nothing, or there is none."""
    marks: int


def build(
    tenant: Tenant,
    slug: str,
    told: Callable[[int, int], None] = lambda done, of: None,
    seconds: float = math.inf,
) -> None:
    """Build a dataset's state, and its windows, until they lack nothing; returns early if it is dropped, or
    if time is up.

    Args:
        told: called with the number of files that were read, and that there are.
        seconds: no piece begins after this long.

    Raises:
        NotFound: the tenant has no such dataset.
        Terminal: a file of the table is gone or damaged, or another engine wrote delete files.
        OSError: the object store failed.
    """
    until = time.monotonic() + seconds
    look = partial(_look, tenant, slug)
    while (seen := look()).location:
        if readable.as_it_is(partial(_read, tenant, told, until), seen, look, lambda seen: seen.location):
            break
    window_build.build(tenant, slug, told, until - time.monotonic())


def _look(tenant: Tenant, slug: str) -> _Seen:
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id, one_snapshot=True) as connection:
        for dataset in dataset_rows.read(connection, dataset_rows.OF_SLUG, [slug]):
            row = connection.execute(LACKS, [dataset.dataset_id]).fetchone()
            location = iceberg.current_location(connection, (tenant.namespace, slug)) if row else ""
            return _Seen(dataset, location, row[0] if row else 0)
    return _Seen(find_dataset(tenant, slug), "", 0)


def _read(tenant: Tenant, told: Callable[[int, int], None], until: float, seen: _Seen) -> bool:
    """Merge all that a table has; False: the state is another one by now, or lacks more."""
    if not seen.location:
        return True
    dataset = seen.dataset
    files = table_rows.files(tenant, dataset, seen.location)
    schema = arrow_columns.arrow_schema(dataset.table_schema)
    for number, file in enumerate(files):
        told(number, len(files))
        for rows in table_rows.pieces(file, schema):
            if time.monotonic() > until:
                return True
            frame = state_keys.frame(dataset, rows)
            fail_point("state_build.read")
            if frame is None or not _merge(tenant, seen, frame.packed):
                return False
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return connection.execute(BUILT, _place(seen)).rowcount == 1


def _merge(tenant: Tenant, seen: _Seen, packed: bytes) -> bool:
    """Merge a piece, unless the state came to lack more since: an erasure may have removed some of it."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        row = connection.execute(HOLD, _place(seen)).fetchone()
        if row is None:
            return False
        state_keys.merge(connection, tenant.tenant_id, seen.dataset.dataset_id, row[0], [packed])
    return True


def _place(seen: _Seen) -> list[object]:
    state_id = None if seen.dataset.state is None else seen.dataset.state[0]
    return [seen.dataset.dataset_id, state_id, seen.marks]
