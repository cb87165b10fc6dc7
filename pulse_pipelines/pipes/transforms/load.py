"""Load: the result of a transform at one moment of its sources, computed in Spark, sent by the run itself."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from tempfile import TemporaryFile
from typing import IO, Any
from uuid import uuid4

import orjson
import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.curated.query_check import check_reads
from pulse_pipelines.domain import entities
from pulse_pipelines.domain.entities import DELETED, ID
from pulse_pipelines.domain.moments import utc_text
from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.pipes import fence, progress
from pulse_pipelines.pipes.fence import RunOf
from pulse_pipelines.pipes.publishing import Loaded, publish
from pulse_pipelines.pipes.read_plan import ReadPlan
from pulse_pipelines.pipes.registry import Pipe, list_pipes
from pulse_pipelines.pipes.rows import LONGEST
from pulse_pipelines.pipes.transforms import columns, hops
from pulse_pipelines.pipes.transforms.hops import All, Moved, ThisTime, Touched
from pulse_pipelines.pipes.transforms.queries import query_of, refuse_cycles
from pulse_pipelines.pipes.transforms.shape import Whole
from pulse_pipelines.pipes.transforms.sources import Pinned, pin
from pulse_resources import outages, postgres, spark
from pulse_resources.errors import UserError
from pulse_resources.iceberg import readable
from pulse_resources.process.faults import fail_point


def schema(tenant: Tenant, definition: Definition) -> dict[str, Any]:
    """The JSON Schema of the entities, by Spark's analysis of the query.

    Raises:
        NotFound: the tenant has no such dataset.
        Conflict: the result would be a source of itself.
        UserError: the query is not allowed, or has no result that entities can have.
        Transient: Spark does not answer.
    """
    pinned = _pinned(tenant, definition)
    with spark.session() as session:
        return columns.schema(_columns(session, pinned))


def computes(tenant: Tenant, definition: Definition) -> str:
    """The line that describes what runs of a transform compute; raises as `schema`."""
    try:
        return str(hops.shape(_pinned(tenant, definition)))
    except Whole as why:
        return why.line


@contextmanager
def opened(pipe: Pipe, parallelism: int, *, full: bool) -> Iterator[ReadPlan]:
    """Pin the sources of a pipe, and find what has to be computed since the last settled run.

    Raises:
        NotFound: a source is gone.
        UserError: the query is no longer allowed.
        Transient: an earlier run still sends rows.
    """
    run, moment = fence.begin(pipe), datetime.now(UTC)
    pinned = _pinned(pipe.tenant, pipe.definition)
    fail_point("pipe.looked")
    if not full and pipe.position == pinned.position(str(pipe.dataset_id)):
        yield ReadPlan(False, pipe.position, moment)
        return
    computation = _touched(replace(pipe, position=None) if full else pipe, pinned)
    position = computation.pinned.position(str(pipe.dataset_id))
    anything = computation.numbers is None or len(computation.numbers)
    drive = partial(_drive, pipe, computation, run, moment) if anything else None
    yield ReadPlan(computation.numbers is None, position, moment, drive=drive)


def _touched(pipe: Pipe, pinned: Pinned) -> Touched | All:
    """What has to be computed; records which of the two, and why."""
    computation: Touched | All = All(pinned)
    for attempt in range(readable.LOOKS):
        if attempt:
            computation = All(_pinned(pipe.tenant, pipe.definition))
        try:
            computation = hops.touched(pipe, computation.pinned)
            line = str(computation.shape)
        except Whole as why:
            line = why.line
        except Moved:
            line = ThisTime("the datasets change while they are read").line
            continue
        break
    with postgres.tenant_transaction("pulse_pipeline", pipe.tenant.tenant_id) as connection:
        progress.computes(connection, pipe.name, line)
    return computation


def _pinned(tenant: Tenant, definition: Definition) -> Pinned:
    """The sources; looked at in each run, too: two pipes that are created at once do not see each other."""
    refuse_cycles(definition, [pipe.definition for pipe in list_pipes(tenant)])
    return pin(tenant, query_of(definition))


def _drive(
    pipe: Pipe, computation: Touched | All, run: RunOf, moment: datetime, session: SparkSession
) -> list[Loaded]:
    """Compute the rows, and publish them once all of them are known to be entities.

    The rows wait in a file without a name, which no other process can open and which ends with this one.

    Raises:
        UserError: an id is there twice, or a row has none; or what the query computes is an error.
    """
    with TemporaryFile() as file:
        try:
            _compute(session, pipe, computation, moment, file)
        except PySparkException as error:
            outages.check(session)
            if isinstance(error, AnalysisException):
                raise _wrong(error) from None
            # Spark's message would quote the value that is at fault.
            why = error.getCondition() or type(error).__name__
            fix = (
                None if error.getCondition() else "Spark's log says why; it may be a value of many megabytes"
            )
            raise UserError(f"the transform cannot be computed: {why}", fix=fix, pipe=pipe.name) from None
        fail_point("pipe.computed")
        file.seek(0)
        with fence.joined(run) as hold:
            return [publish(pipe.tenant.topic, hold(_rows(file)))]


def _compute(
    session: SparkSession, pipe: Pipe, computation: Touched | All, moment: datetime, file: IO[bytes]
) -> None:
    fields = _columns(session, computation.pinned)
    at = utc_text(moment, timespec="microseconds")
    without_row: list[str] = []
    with _view(session, computation) as numbers:
        frame: Any = session.sql(computation.sql(fields, numbers))
        check_reads(spark.plan(frame), computation.pinned.reads)
        for entity_id, data, times, not_text in frame.toLocalIterator(prefetchPartitions=True):
            if entity_id is None:
                raise UserError("a row of the transform has no id", fix="Leave it out: WHERE ... IS NOT NULL")
            if not_text is not None:
                raise UserError(
                    f"the column {not_text!r} of the row with the id {entity_id[:200]!r} is not UTF-8",
                    fix="Cast only bytes of UTF-8 to text",
                )
            if times > 1:
                raise UserError(
                    f"the transform has the id {entity_id[:200]!r} {times} times",
                    fix="Join by columns that identify a row, or group by the id",
                )
            if data is None:
                without_row.append(entity_id)
                continue
            key, data = json.dumps(entity_id), columns.shortest(data)
            event = f'{{"event_id":{key},"dataset":"{pipe.dataset}","timestamp":"{at}","data":{data}}}'
            _write(file, entity_id, event.encode())
    for entity_id in computation.deleted_ids(without_row):
        deletion = entities.event({ID: entity_id, DELETED: True}, pipe.dataset, at)
        _write(file, entity_id, orjson.dumps(deletion))


def _write(file: IO[bytes], entity_id: str, event: bytes) -> None:
    if len(event) > LONGEST:
        raise UserError(f"the row of the id {entity_id[:200]!r} has {len(event):,} bytes")
    file.write(b"%s\t%s\n" % (entity_id.encode().hex().encode(), event))


@contextmanager
def _view(session: SparkSession, computation: Touched | All) -> Iterator[str]:
    """A view of the numbers of what is computed; the session is shared with other runs."""
    name = f"_{uuid4().hex}"
    if computation.numbers is not None:
        table = pa.table({"n": computation.numbers})
        session.createDataFrame(table).createOrReplaceTempView(name)
    try:
        yield name
    finally:
        session.catalog.dropTempView(name)


def _rows(file: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    for line in file:
        key, _, event = line.rstrip(b"\n").partition(b"\t")
        yield bytes.fromhex(key.decode()), event


def _columns(session: SparkSession, pinned: Pinned) -> Any:
    session.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        fields = session.sql(pinned.sql).schema.fields
    except AnalysisException as error:
        raise _wrong(error) from None
    columns.check(fields)
    return fields


def _wrong(error: AnalysisException) -> UserError:
    """What is wrong with the query, without the plan that follows: no row has been read."""
    return UserError(f"the transform cannot be computed: {str(error).partition(';')[0][:500]}")
