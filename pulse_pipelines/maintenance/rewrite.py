"""Rewriting data files in Spark tasks, several at a time: for a move to another schema, and for an erasure.

What is written is in no table yet: whoever asked for it commits it. No value of an erasure comes here: rows
that are to go are named by their positions.
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
from pulse_resources.errors import Gone, Terminal
from pulse_resources.faults import fail_point
from pulse_resources.settings import load_settings
from pulse_resources.spark import run_tasks

WAVE_FILES = 32
"""Files of one Spark job for each task that may run at a time ..."""
WAVE_BYTES = 128 * 1024 * 1024
"""... or so many bytes of them: after each job it is told how far the work is."""

Session = Callable[[], SparkSession]
"""Gives the Spark session when there is something to write."""
Progress = Callable[[int, int], None]
"""Told how many files are written, and how many are to be."""


@dataclass(frozen=True)
class NotRewritten:
    """Why a task could not write a file again, where trying again is no help."""

    path: str
    gone: bool
    error: str


def on_spark(
    session: Session,
    tenant: Tenant,
    dataset_id: UUID,
    slug: str,
    why: str,
    *,
    run_id: str | None = None,
    progress: Progress = lambda written, wanted: None,
) -> Rewriter:
    """A rewriter of files of one dataset's table, whose lease the caller holds.

    What it does is in the history of upkeep: if the process dies, whoever looks for files that nothing
    reaches knows that Spark may still be at work.

    Args:
        why: for the history.

    The rewriter raises:
        Gone: a file is.
        Terminal: a file is damaged, or has not the rows that were to go.
        Transient: Spark does not answer.
        PySparkException: a task failed: the object store, Postgres or Spark.
    """

    def rewriter(files: Sequence[Rewrite]) -> Mapping[str, RewrittenFile]:
        if not files:
            return {}
        spark = session()
        done = Done(tenant.slug, slug, None, REWRITE, why, run_id=run_id)
        written: dict[str, RewrittenFile] = {}
        with history.recorded(tenant, dataset_id, done):
            done.before = {"files": len(files), "bytes": sum(file.bytes for file in files)}
            progress(0, len(files))
            for wave in waves(files, load_settings().spark.parallelism):
                for outcome in run_tasks(spark, wave, rewrite_task, [RewrittenFile, NotRewritten]):
                    if isinstance(outcome, NotRewritten):
                        raise _error(outcome, tenant, slug)
                    written[outcome.source] = outcome
                progress(len(written), len(files))
            done.after = {"files": len(written), "bytes": sum(each.bytes for each in written.values())}
        return written

    return rewriter


def waves(files: Sequence[Rewrite], parallelism: int) -> Iterator[Sequence[Rewrite]]:
    """The files in the order given, as groups of which each is one Spark job."""
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
    """One Spark task: one file."""
    try:
        yield rewrite_file.rewrite(file, GiveWay())
    except FileNotFoundError as error:
        yield NotRewritten(file.path, True, str(error))
    except (pa.ArrowInvalid, Terminal) as error:
        yield NotRewritten(file.path, False, str(error))
    fail_point("rewrite.file")


def _error(found: NotRewritten, tenant: Tenant, slug: str) -> Terminal:
    where = {"tenant": tenant.slug, "dataset": slug, "file": found.path}
    if found.gone:
        return Gone(f"a file of the table is gone: {found.error}", **where)
    return Terminal(
        f"a file of the table is damaged: {found.error}",
        fix="`pulse reconcile` tells what is wrong with it",
        **where,
    )
