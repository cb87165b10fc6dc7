"""A chain of requests: pushes the versions that a sink lacks, and continues the chain of a run that died.

Each request is recorded before it is sent, and its acceptance after it is answered. A run that dies between
the two leaves a request that may have arrived: the next run sends the same request under the same id, and the
service drops it if it has it.
"""

import uuid
from collections.abc import Mapping
from dataclasses import replace

from pulse_pipelines.domain import json_values
from pulse_pipelines.domain.entities import DELETED, ID
from pulse_pipelines.pipes.sinks.deliveries import Chain, Confirmed, Counts, Request, Run
from pulse_pipelines.pipes.sinks.http import Service
from pulse_pipelines.pipes.sinks.reading import Batch, Entity, Reader
from pulse_resources.errors import Conflict, Transient, UserError
from pulse_resources.process.faults import fail_point

BYTES = 2 * 1024 * 1024
"""Bytes of a request's body; a single entity may have more."""


def push(run: Run, service: Service, reader: Reader, generation: int, updated: int) -> None:
    """Push all versions up to a place in the log.

    Args:
        generation: of the log; with another one, everything is sent, as a full chain.
        updated: the place.

    Raises:
        Conflict: the service continues no chain, not even a new one; or another run is under way.
        UserError: it refuses a request.
        Transient: it does not answer, or the index of the subset cannot be read to its end.
    """
    try:
        _push(run, service, reader, generation, updated)
    except _Broken:
        run.without_chain()
        try:
            _push(run, service, reader, generation, updated)
        except _Broken:
            raise Conflict(
                "the service has broken off two chains of requests, one after the other (409)",
                fix="See what it says of its syncs; another one may send to the same dataset",
                pipe=run.pipe,
            ) from None


class _Broken(Exception):  # noqa: N818 - handled above
    """The service has answered with 409."""


def _push(run: Run, service: Service, reader: Reader, generation: int, updated: int) -> None:
    state = run.confirmed
    if state is None or (state.epoch, state.generation) != (run.epoch, generation):
        state = Confirmed(run.epoch, generation, 0, Chain(uuid.uuid4().hex, is_full=True))
    elif state.chain is None:
        if state.updated >= updated:
            return
        state = replace(state, chain=Chain(uuid.uuid4().hex, is_full=False))
    while state.chain is not None:
        if run.gives_way():
            return
        state = _step(run, service, reader, state, state.chain, updated)
    if state.updated < updated:  # what came after the chain of an earlier run had been meant to end
        _push(run, service, reader, generation, updated)


def _step(
    run: Run, service: Service, reader: Reader, state: Confirmed, chain: Chain, updated: int
) -> Confirmed:
    """One request, and what is true after its answer."""
    run.is_full = run.is_full or chain.is_full
    sent = chain.sent
    batch = _batch(reader, state, sent.until if sent else updated, None if sent else BYTES)
    if sent is None:
        if batch.until == state.updated < updated:
            raise Transient("the index of the subset is not at the end of the log yet")
        is_last = batch.until >= updated
        sent = Request(f"{state.generation}-{batch.until}", batch.until, is_last)
        state = replace(state, chain=replace(chain, sent=sent))
        run.confirm(state)
    fail_point("push.before_request")
    try:
        answer = service.push(_parameters(chain, sent), b"\n".join(map(_line, batch.entities)))
    except Conflict:
        raise _Broken from None
    except UserError:  # not taken: the next request may bring newer versions of the same entities
        run.confirm(replace(state, chain=replace(chain, sent=None)))
        raise
    fail_point("push.answered")
    deleted = sum(entity.is_deleted for entity in batch.entities)
    upserted = max(0, len(batch.entities) - deleted - answer.refused)
    counts = Counts(batch.versions, upserted, deleted, answer.refused)
    following = replace(chain, previous=sent.request, sent=None)
    state = replace(state, updated=sent.until, chain=None if sent.is_last else following)
    run.confirm(state, counts)
    fail_point("push.confirmed")
    return state


def _batch(reader: Reader, state: Confirmed, until: int, most_bytes: int | None) -> Batch:
    """The versions of a request; a recorded request has all up to its recorded end."""
    batch = reader.after(state.updated, until, most_bytes)
    while most_bytes is None and batch.until < until:
        more = reader.after(batch.until, until)
        if more.until == batch.until:
            raise Transient("the index of the subset is not at the end of the log yet")
        newest = {entity.id: entity for entity in (*batch.entities, *more.entities)}
        entities = sorted(newest.values(), key=lambda entity: entity.updated)
        batch = Batch(entities, batch.versions + more.versions, more.until)
    return batch


def _parameters(chain: Chain, sent: Request) -> Mapping[str, str]:
    first = {"is_first": "true"} if chain.previous is None else {"previous_request_id": chain.previous}
    return {
        "is_full": "true" if chain.is_full else "false",
        "sequence_id": chain.sequence,
        "request_id": sent.request,
        **first,
        **({"is_last": "true"} if sent.is_last else {}),
    }


def _line(entity: Entity) -> bytes:
    content = {DELETED: True} if entity.is_deleted else entity.content
    return json_values.written({ID: entity.id, **content})
