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

from pulse_pipelines.curated.checked_plan import check_reads
from pulse_pipelines.domain import entities
from pulse_pipelines.domain.entities import DELETED, ID
from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.pipes import fence, progress
from pulse_pipelines.pipes.fence import RunOf
from pulse_pipelines.pipes.publishing import Loaded, publish
from pulse_pipelines.pipes.registry import Pipe, list_pipes
from pulse_pipelines.pipes.rows import LONGEST
from pulse_pipelines.pipes.transforms import columns, hops
from pulse_pipelines.pipes.transforms.hops import All, Moved, ThisTime, Touched
from pulse_pipelines.pipes.transforms.queries import query_of, refuse_cycles
from pulse_pipelines.pipes.transforms.shape import Whole
from pulse_pipelines.pipes.transforms.sources import Pinned, pin
from pulse_pipelines.pipes.wanted import Wanted
from pulse_resources import outages, postgres, readable, spark
from pulse_resources.errors import UserError
from pulse_resources.faults import fail_point


def schema(tenant: Tenant, said: Definition) -> dict[str, Any]:
    """The JSON Schema of the entities, by Spark's analysis of the query.

    Raises:
        NotFound: the tenant has no such dataset.
        Conflict: the result would be a source of itself.
        UserError: the query is not allowed, or has no result that entities can have.
        Transient: Spark does not answer.
    """
    pinned = _pinned(tenant, said)
    with spark.session() as session:
        return columns.schema(_columns(session, pinned))


def computes(tenant: Tenant, said: Definition) -> str:
    """What runs of a transform compute, in a line; raises as `schema`."""
    try:
        return str(hops.shape(_pinned(tenant, said)))
    except Whole as why:
        return why.told


@contextmanager
def opened(pipe: Pipe, parallelism: int, *, full: bool) -> Iterator[Wanted]:
    """Pin the sources of a pipe, and see what has to be computed since the last run that settled.

    Raises:
        NotFound: a source is gone.
        UserError: the query is not allowed any more.
        Transient: an earlier run still sends rows.
    """
    run, moment = fence.begin(pipe), datetime.now(UTC)
    pinned = _pinned(pipe.tenant, pipe.definition)
    fail_point("pipe.looked")
    if not full and pipe.position == pinned.position(str(pipe.dataset_id)):
        yield Wanted(False, pipe.position, moment)
        return
    found = _touched(replace(pipe, position=None) if full else pipe, pinned)
    position = found.pinned.position(str(pipe.dataset_id))
    anything = found.numbers is None or len(found.numbers)
    drive = partial(_drive, pipe, found, run, moment) if anything else None
    yield Wanted(found.numbers is None, position, moment, drive=drive)


def _touched(pipe: Pipe, pinned: Pinned) -> Touched | All:
    """What has to be computed; notes which of the two, and why."""
    found: Touched | All = All(pinned)
    for look in range(readable.LOOKS):
        if look:
            found = All(_pinned(pipe.tenant, pipe.definition))
        try:
            found = hops.touched(pipe, found.pinned)
            told = str(found.shape)
        except Whole as why:
            told = why.told
        except Moved:
            told = ThisTime("the datasets change while they are looked at").told
            continue
        break
    with postgres.tenant_transaction("pulse_pipeline", pipe.tenant.tenant_id) as connection:
        progress.computes(connection, pipe.name, told)
    return found


def _pinned(tenant: Tenant, said: Definition) -> Pinned:
    """The sources; looked at in each run, too: two pipes that are created at once do not see each other."""
    refuse_cycles(said, [pipe.definition for pipe in list_pipes(tenant)])
    return pin(tenant, query_of(said))


def _drive(
    pipe: Pipe, found: Touched | All, run: RunOf, moment: datetime, session: SparkSession
) -> list[Loaded]:
    """Compute the rows, and publish them once all of them are known to be entities.

    The rows wait in a file without a name, which no other process can open and which ends with this one.

    Raises:
        UserError: an id is there twice, or a row has none; or what the query computes is an error.
    """
    with TemporaryFile() as file:
        try:
            _compute(session, pipe, found, moment, file)
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
        with fence.joined(run) as held:
            return [publish(pipe.tenant.topic, held(_rows(file)))]


def _compute(
    session: SparkSession, pipe: Pipe, found: Touched | All, moment: datetime, file: IO[bytes]
) -> None:
    fields = _columns(session, found.pinned)
    at = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    gone: list[str] = []
    with _view(session, found) as numbers:
        frame: Any = session.sql(found.sql(fields, numbers))
        check_reads(spark.plan(frame), found.pinned.reads)
        for entity_id, data, times in frame.toLocalIterator(prefetchPartitions=True):
            if entity_id is None:
                raise UserError("a row of the transform has no id", fix="Leave it out: WHERE ... IS NOT NULL")
            if times > 1:
                raise UserError(
                    f"the transform has the id {entity_id[:200]!r} {times} times",
                    fix="Join by what tells rows apart, or group by the id",
                )
            if data is None:
                gone.append(entity_id)
                continue
            key = json.dumps(entity_id)
            event = f'{{"event_id":{key},"dataset":"{pipe.dataset}","timestamp":"{at}","data":{data}}}'
            _write(file, entity_id, event.encode())
    for entity_id in found.gone(gone):
        deletion = entities.event({ID: entity_id, DELETED: True}, pipe.dataset, at)
        _write(file, entity_id, orjson.dumps(deletion))


def _write(file: IO[bytes], entity_id: str, event: bytes) -> None:
    if len(event) > LONGEST:
        raise UserError(f"the row of the id {entity_id[:200]!r} has {len(event):,} bytes")
    file.write(b"%s\t%s\n" % (entity_id.encode().hex().encode(), event))


@contextmanager
def _view(session: SparkSession, found: Touched | All) -> Iterator[str]:
    """A view of the numbers of what is computed; the session is shared with other runs."""
    name = f"_{uuid4().hex}"
    if found.numbers is not None:
        table = pa.table({"n": found.numbers})
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
        found = session.sql(pinned.sql).schema.fields
    except AnalysisException as error:
        raise _wrong(error) from None
    columns.check(found)
    return found


def _wrong(error: AnalysisException) -> UserError:
    """What is wrong with the query, without the plan that follows: no row has been read."""
    return UserError(f"the transform cannot be computed: {str(error).partition(';')[0][:500]}")
