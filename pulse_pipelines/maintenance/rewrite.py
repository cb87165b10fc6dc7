"""Data files rewritten in parallel Spark tasks, for a move to another schema or for an erasure.

The written files are in no table until the caller commits them. No personal value of an erasure is passed to
Spark: rows to remove are named by position.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest.priority import GiveWay
from pulse_pipelines.maintenance import history
from pulse_pipelines.maintenance.history import REWRITE, Done
from pulse_pipelines.tables import rewrite_file
from pulse_pipelines.tables.rewrite_file import Rewrite, Rewriter, RewrittenFile
from pulse_resources.errors import FileGone, Terminal
from pulse_resources.process.faults import fail_point
from pulse_resources.settings import load_settings
from pulse_resources.spark import noted, run_tasks

WAVE_FILES = 32
"""Files per Spark job for each task that may run at a time ..."""
WAVE_BYTES = 128 * 1024 * 1024
"""... or bytes of them. Progress is reported after each job."""

NEXT_STEP = "The table is as it was: it is tried again, and can be by hand once the cause is removed"

Session = Callable[[], SparkSession]
"""Returns the Spark session; called only when there is something to write."""
Progress = Callable[[int, int], None]
"""Called with the number of files written and the total."""


@dataclass(frozen=True)
class NotRewritten:
    """Reason why a file cannot be rewritten, whatever the number of retries."""

    path: str
    missing: bool
    error: str


def on_spark(
    session: Session,
    tenant: Tenant,
    dataset_id: UUID,
    slug: str,
    why: str,
    *,
    run_id: str | None = None,
    progress: Progress = lambda written, total: None,
) -> Rewriter:
    """Make a rewriter of one dataset's data files; the caller holds the table's lease.

    Its work is recorded in the maintenance history, so that after a crash orphan removal knows that Spark may
    still be writing.

    Args:
        why: reason for the history.

    The rewriter raises:
        Gone: a file is gone.
        Terminal: a file is damaged, or lacks the rows to remove.
        Transient: Spark does not answer.
        PySparkException: a task failed: the object store, Postgres or Spark.
    """

    def rewriter(files: Sequence[Rewrite]) -> Mapping[str, RewrittenFile]:
        if not files:
            return {}
        spark = session()
        done = Done(tenant.slug, slug, None, REWRITE, why, run_id=run_id)
        written: dict[str, RewrittenFile] = {}
        context = {"tenant": tenant.slug, "dataset": slug, "rewritten for": why}
        with history.recorded(tenant, dataset_id, done), noted(NEXT_STEP, **context):
            done.before = {"files": len(files), "bytes": sum(file.bytes for file in files)}
            progress(0, len(files))
            for wave in waves(files, load_settings().spark.parallelism):
                for outcome in run_tasks(spark, wave, rewrite_task, [RewrittenFile, NotRewritten]):
                    if isinstance(outcome, NotRewritten):
                        raise _error(outcome, tenant, slug)
                    written[outcome.source] = outcome
                progress(len(written), len(files))
            done.after = {"files": len(written), "bytes": sum(file.bytes for file in written.values())}
        return written

    return rewriter


def waves(files: Sequence[Rewrite], parallelism: int) -> Iterator[Sequence[Rewrite]]:
    """Split files into groups, in the order given; each group is one Spark job."""
    wave: list[Rewrite] = []
    size = 0
    for file in files:
        wave.append(file)
        size += file.bytes
        if len(wave) >= WAVE_FILES * parallelism or size >= WAVE_BYTES * parallelism:
            yield wave
            wave, size = [], 0
    if wave:
        yield wave


def rewrite_task(file: Rewrite) -> Iterator[RewrittenFile | NotRewritten]:
    """Spark task: rewrites one file."""
    try:
        yield rewrite_file.rewrite(file, GiveWay())
    except FileNotFoundError as error:
        yield NotRewritten(file.path, True, str(error))
    except (pa.ArrowInvalid, Terminal) as error:
        yield NotRewritten(file.path, False, str(error))
    fail_point("rewrite.file")


def _error(failure: NotRewritten, tenant: Tenant, slug: str) -> Terminal:
    where = {"tenant": tenant.slug, "dataset": slug, "file": failure.path}
    if failure.missing:
        return FileGone(f"a file of the table is gone: {failure.error}", **where)
    return Terminal(
        f"a file of the table is damaged: {failure.error}",
        fix="`pulse reconcile` tells what is wrong with it",
        **where,
    )
