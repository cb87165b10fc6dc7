"""A run of a pipe with a sink: copies the versions that the dataset's log has when the run begins."""

from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest import spans
from pulse_pipelines.pipes.postgres import sessions
from pulse_pipelines.pipes.registry import Pipe, find
from pulse_pipelines.pipes.sinks import answers, target
from pulse_pipelines.pipes.sinks.checks import address_of
from pulse_pipelines.pipes.sinks.deliveries import Confirmed, Counts, Run, recorded_run
from pulse_pipelines.pipes.sinks.http import Service
from pulse_pipelines.pipes.sinks.push import push
from pulse_pipelines.pipes.sinks.reading import Reader
from pulse_pipelines.pipes.sinks.table import SinkTable
from pulse_pipelines.pipes.turns import OthersWait, Turn, no_one_waits
from pulse_pipelines.registry import CurrentLog
from pulse_resources.errors import Conflict
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.process.faults import fail_point

SESSION = "SET row_security = on; SET lock_timeout = '60s'"
"""A sink's policies hold for Pulse, too. A lock of the table delays one run, but not permanently."""


def deliver(tenant: Tenant, name: str, others_wait: OthersWait = no_one_waits) -> Run:
    """Run a pipe with a sink once; returns the recorded run.

    Args:
        others_wait: whether another tenant's run waits for the place that this one holds.

    Raises:
        Conflict: another run is active.
        NotFound, UserError: the table, or the dataset, no longer exists, or the sink refuses the entities.
        Transient: the sink does not answer, or it has to give up its place. What it has confirmed stays.
    """
    pipe = find(tenant, name)
    with locks.session(Lock.PIPE, f"{tenant.tenant_id}/{name}") as alone:
        if alone is None:
            raise Conflict("another run of the pipe is under way", tenant=tenant.slug, pipe=name)
        with spans.work("run pipe", tenant=tenant.slug, pipe=name) as tell, recorded_run(tenant, name) as run:
            pipe = find(tenant, name)
            log = registry.current_log(tenant, pipe.dataset)
            reader = Reader(pipe, log.generation)
            address = address_of(tenant, pipe.definition)
            turn = run.turn = Turn(others_wait, lambda: run.counts.versions, lambda: None)
            with turn.watched(), turn.waiting():
                if pipe.definition.sink.table is not None:
                    _write(run, pipe, log, reader, address)
                else:
                    with Service(address) as service:
                        push(run, service, reader, log.generation, log.updated)
            tell(versions=run.counts.versions, full=run.is_full)
            return run


def _write(run: Run, pipe: Pipe, log: CurrentLog, reader: Reader, address: str) -> None:
    with sessions.connect(address) as connection:
        with answers.explained():
            connection.execute(SESSION)
            sessions.begin_alone(connection, f"{pipe.tenant.tenant_id}/{pipe.name}")
        fail_point("sink.held")
        aim = target.inspect(connection, pipe.definition, log.dataset)
        of = f"{pipe.dataset_id}/{log.generation}/{run.epoch}/{pipe.definition.sink.subset or ''}"
        table = SinkTable(connection, pipe, aim, of)
        position = table.position
        run.is_full = position.deletes_missing or position.updated == 0
        if position.updated > log.updated:
            raise Conflict(
                "the sink has versions that the log lacks: Pulse was restored to an earlier state",
                fix=f"Copy everything again: pulse pipe reset {pipe.tenant.slug} {pipe.name}",
                tenant=pipe.tenant.slug,
                pipe=pipe.name,
            )
        _confirm(run, log, position.updated)
        while position.updated < log.updated:
            if run.gives_way():
                return
            batch = reader.after(position.updated, log.updated)
            if batch.until == position.updated:  # the index of the subset has no more yet
                break
            _confirm(run, log, batch.until, table.write(batch))
        if position.deletes_missing and position.updated == log.updated:
            _confirm(run, log, position.updated, table.delete_missing())
        counts, refused = table.retry()
        if counts != Counts():
            _confirm(run, log, position.updated, counts)
        run.note_refused(refused)


def _confirm(run: Run, log: CurrentLog, updated: int, counts: Counts | None = None) -> None:
    confirmed = Confirmed(run.epoch, log.generation, updated)
    if confirmed != run.confirmed or counts is not None:
        run.confirm(confirmed, counts)
