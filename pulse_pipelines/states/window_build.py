"""Building of windows: from the table as it was when they began, while batches add what settles since.

To begin is one transaction that holds the windows: it empties them, and then reads which metadata the table
has. A batch that settled before has its rows there; one that settles later waits, and adds its own. The rows
of that metadata, the *base*, are added a piece at a time, each with the place up to which it was read, in one
transaction: whoever builds on, after a crash or beside another, adds none twice. What changes rows of the
table in another way ends the build (`states.window_buckets.changed`), and the next begins from scratch.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
from pyiceberg.table import FileScanTask

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.domain.windows import end_of
from pulse_pipelines.registry.datasets import find_dataset
from pulse_pipelines.states import state_keys, table_rows, window_buckets
from pulse_pipelines.tables import arrow_columns, dataset_rows, file_metrics
from pulse_resources import iceberg, postgres
from pulse_resources.errors import FileGone
from pulse_resources.process.faults import fail_point

WAITING = """
SELECT round, base, read_files, read_pieces, newest, dropped_to FROM event_windows
WHERE dataset_id = %s AND NOT built FOR NO KEY UPDATE
"""
PIN = "UPDATE event_windows SET base = %s WHERE dataset_id = %s RETURNING round"
UNPIN = "UPDATE event_windows SET base = NULL WHERE dataset_id = %s AND round = %s"
STILL = """
SELECT FROM event_windows WHERE dataset_id = %s AND round = %s AND base IS NOT NULL
    AND (read_files, read_pieces) = (%s, %s) FOR NO KEY UPDATE
"""
READ = "UPDATE event_windows SET read_files = %s, read_pieces = %s WHERE dataset_id = %s"
BUILT = """
UPDATE event_windows SET built = true, base = NULL
WHERE dataset_id = %s AND round = %s AND base IS NOT NULL AND (read_files, read_pieces) = (%s, %s)
"""


@dataclass(frozen=True)
class _Step:
    """How far a build is."""

    dataset: Dataset
    round: int
    base: str
    """Location of the table's metadata."""
    files: int
    """Files of the base that were read, in the order of `_newest_first`."""
    pieces: int
    """Pieces of the next one that were read."""
    after: int | None
    """The minute after which buckets are kept, so far."""


def build(
    tenant: Tenant,
    slug: str,
    report_progress: Callable[[int, int], None] = lambda done, of: None,
    seconds: float = math.inf,
) -> None:
    """Build the windows of a dataset's state, if they are to be built; returns early if time is up.

    Args:
        report_progress: called with the number of files read, and of all files.
        seconds: no piece begins after this long.

    Raises:
        NotFound: the tenant has no such dataset.
        Terminal: a file of the table is gone or damaged, or another engine wrote delete files.
        OSError: the object store failed.
    """
    until = time.monotonic() + seconds
    while time.monotonic() <= until and (step := _next_step(tenant, slug)) is not None:
        try:
            _read(tenant, step, report_progress, until)
        except (FileGone, FileNotFoundError):  # an erasure deletes files that no pointer reaches
            with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
                if iceberg.current_location(connection, (tenant.namespace, slug)) == step.base:
                    raise
                connection.execute(UNPIN, [step.dataset.dataset_id, step.round])


def _next_step(tenant: Tenant, slug: str) -> _Step | None:
    """How far the build is, begun if it was not; None: there is nothing to build."""
    dataset_id = find_dataset(tenant, slug).dataset_id
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        row = connection.execute(WAITING, [dataset_id]).fetchone()
        if row is None:
            return None
        # Read now that the windows are held: what they are declared to have stays so.
        (dataset,) = dataset_rows.read(connection, "d.dataset_id = %s", [dataset_id])
        if row[1] is not None:
            number, base, files, pieces, newest, dropped_to = row
            after = window_buckets.retained_after(newest, dropped_to)
            return _Step(dataset, number, base, files, pieces, after)
        window_buckets.restart(connection, dataset_id)
        base = iceberg.current_location(connection, (tenant.namespace, slug))
        ((number,),) = connection.execute(PIN, [base, dataset_id]).fetchall()
    fail_point("window_build.began")
    return _Step(dataset, number, base, 0, 0, None)


def _read(tenant: Tenant, step: _Step, report_progress: Callable[[int, int], None], until: float) -> None:
    """Add the rest of the base; ends early if time is up, or if another process continues the build."""
    files = sorted(table_rows.files(tenant, step.dataset, step.base), key=_newest_first)
    schema = _columns(step.dataset)
    for number in range(step.files, len(files)):
        report_progress(number, len(files))
        if step.after is not None and _last_minute(files[number]) <= step.after:
            break  # and so are those that follow
        done = step.pieces if number == step.files else 0
        for piece, rows in enumerate(table_rows.pieces(files[number], schema)):
            if piece < done:
                continue
            if time.monotonic() > until:
                return
            fail_point("window_build.read")
            following = _add(tenant, step, rows, (number, piece + 1))
            if following is None:
                return
            step = following
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        connection.execute(BUILT, _place(step))


def _add(tenant: Tenant, step: _Step, rows: pa.Table, place: tuple[int, int]) -> _Step | None:
    """Add a piece, if the build is where it was; returns how far it is then, or None."""
    dataset = step.dataset
    assert dataset.state is not None  # noqa: S101 - it has windows
    rows, keys = state_keys.with_keys(dataset.state[1], rows)
    packed = window_buckets.frame(dataset, keys, rows)
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        if connection.execute(STILL, _place(step)).fetchone() is None:
            return None
        row = connection.execute(window_buckets.HOLD, [dataset.dataset_id]).fetchone()
        assert row is not None  # noqa: S101 - the transaction holds it
        after = window_buckets.add(connection, tenant.tenant_id, dataset.dataset_id, row, [packed])
        connection.execute(READ, [*place, dataset.dataset_id])
    fail_point("window_build.added")
    return replace(step, files=place[0], pieces=place[1], after=after)


def _columns(dataset: Dataset) -> pa.Schema:
    schema = arrow_columns.arrow_schema(dataset.table_schema)
    return pa.schema([schema.field(name) for name in window_buckets.columns(dataset)])


def _newest_first(task: FileScanTask) -> tuple[int, str]:
    return -_last_minute(task), task.file.file_path


def _last_minute(task: FileScanTask) -> int:
    """The last minute of the file's day."""
    return end_of(file_metrics.day_of(task.file))


def _place(step: _Step) -> list[object]:
    return [step.dataset.dataset_id, step.round, step.files, step.pieces]
