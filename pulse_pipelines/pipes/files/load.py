"""Load: all rows of all files that match a path, in few Spark tasks, unless no file has changed."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Any, cast

from pulse_pipelines import registry
from pulse_pipelines.domain.pipe_sources import Files, Format
from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.pipes import addresses, fence, schema_inference
from pulse_pipelines.pipes.fence import RunOf
from pulse_pipelines.pipes.files import formats
from pulse_pipelines.pipes.files.stores import Listed, Store, store
from pulse_pipelines.pipes.publishing import Loaded, publish
from pulse_pipelines.pipes.read_plan import ReadPlan, most_tasks
from pulse_pipelines.pipes.registry import Pipe
from pulse_pipelines.pipes.rows import Event, Maker, as_text, key_of
from pulse_resources.errors import NotFound, UserError
from pulse_resources.process.faults import fail_point

MOST_MADE = 2_000
MADE_FREELY = 256 * 1024 * 1024
"""Bytes of rows, as events, that any file may have; beyond, as many times its own as above."""


@dataclass(frozen=True)
class FileTask:
    """Files that one Spark task reads, one after the other."""

    address: str = field(repr=False)
    topic: str
    dataset: str
    moment: str
    definition: str
    """Members of what the pipe reads, as JSON."""
    schema: str
    files: tuple[Listed, ...]
    run: RunOf


def schema(tenant: Tenant, definition: Definition) -> dict[str, Any] | None:
    """The JSON Schema of the entities: of the first file's columns, or of a sample of its rows.

    None if these show no property, or if it is a Parquet file too large to sample.

    Raises:
        NotFound: the source is not configured, or no file has such a name.
        UserError: the file is not what the pipe says.
        Transient: the source does not answer.
    """
    files = cast(Files, definition.other_end)
    place = store(addresses.url(tenant, files.source))
    first = _listed(place, files)[0]
    with place.opened(first) as stream:
        try:
            return formats.schema(stream, files, first.name)
        except formats.TooLarge:  # a run may read it, into a dataset that is there
            return None


@contextmanager
def opened(pipe: Pipe, parallelism: int, *, full: bool) -> Iterator[ReadPlan]:
    """List the files, and read all of them if one has changed since the last run listed them.

    Raises:
        NotFound, UserError: the source, or what the path stands for, no longer exists.
        Transient: the source does not answer, or an earlier run still sends rows.
    """
    run, files = fence.begin(pipe), cast(Files, pipe.definition.other_end)
    address = addresses.url(pipe.tenant, files.source)
    dataset = registry.find_dataset(pipe.tenant, pipe.dataset)
    moment = datetime.now(UTC)
    place = store(address)
    listed = _listed(place, files)
    fail_point("pipe.looked")
    position = _fingerprint(place, files, listed, str(pipe.dataset_id), dataset.schema_uri)
    if position == pipe.position and not full and all(file.is_versioned for file in listed):
        yield ReadPlan(False, position, moment)
        return
    tasks = [
        FileTask(
            address=address,
            topic=pipe.tenant.topic,
            dataset=pipe.dataset,
            moment=moment.isoformat(timespec="microseconds"),
            definition=json.dumps(files.document),
            schema=json.dumps(dataset.schema),
            files=share,
            run=run,
        )
        for share in _shares(listed, most_tasks(parallelism))
    ]
    yield ReadPlan(True, position, moment, load, tasks)


def load(task: FileTask) -> Iterator[Loaded]:
    """Spark task: publishes each row of its files as an event, all by one producer.

    Raises:
        Conflict: the file changed since it was listed.
        Fenced: another run has begun.
        NotFound, UserError: the file is gone, or not what the pipe says.
        Transient: the source or the broker does not answer.
    """
    with fence.joined(task.run) as hold:
        yield publish(task.topic, hold(_events(task)))


def _events(task: FileTask) -> Iterator[Event]:
    document = json.loads(task.definition)
    form, at = Format(document["format"]), document.get("timestamp")
    files = Files(document["source"], document["path"], form, tuple(document["key"]), at)
    maker, schema, place = (
        Maker(task.dataset, task.moment, files.key, files.timestamp),
        json.loads(task.schema),
        store(task.address),
    )
    for file in task.files:
        with place.opened(file) as stream:
            rows = _timed(formats.rows(stream, files, schema, file.name), files, file.name)
            yield from bounded((event(maker, file.name, row) for row in rows), file)


def _timed(rows: Iterator[formats.Row], files: Files, name: str) -> Iterator[formats.Row]:
    """Rows of a file; for lines that become events, only once one of the first has a time.

    Raises:
        UserError: none has.
    """
    first: list[formats.Row] = []
    size, has_time = 0, files.timestamp is None or files.format is not Format.NDJSON
    for row in () if has_time else rows:
        values = row.values or {}
        first.append(row)
        has_time = files.timestamp in values
        size += len(row.text) + sum(len(bytes(value)) for value in values.values())
        if has_time or len(first) == schema_inference.SAMPLE or size > formats.SAMPLE_BYTES:
            break
    if not has_time and any(row.values is not None for row in first):
        raise formats.without_time(files, name)
    yield from chain(first, rows)


def event(maker: Maker, file: str, row: formats.Row) -> Event:
    """The event of a row; an invalid row's event becomes a dead letter."""
    if row.values is None:
        return maker.refused(row.text, file, row.line, row.why)
    if row.why:
        entity_id = key_of(row.values, maker.key)
        return maker.refused(as_text(row.values), file, row.line, row.why, entity_id)
    return maker.event(row.values, file, row.line)


def bounded(events: Iterable[Event], file: Listed) -> Iterator[Event]:
    """Events of a file while their size is in proportion to it: a value may be stored once for all rows."""
    most = max(MADE_FREELY, MOST_MADE * (file.size or 0))
    size = 0
    for key, payload in events:
        yield key, payload
        size += len(payload)
        if file.size is not None and size > most:
            raise UserError(f"the rows of the file are more than {MOST_MADE:,} times larger", file=file.name)


def _shares(listed: list[Listed], most: int) -> list[tuple[Listed, ...]]:
    """Files of as many tasks."""
    return [tuple(listed[index::most]) for index in range(min(most, len(listed)))]


def _listed(place: Store, files: Files) -> list[Listed]:
    listed = place.listed(files)
    if not listed:
        raise NotFound(
            "the source has no file of this name",
            fix="Nothing is deleted. See that the files are there, or correct the path",
            source=files.source,
            path=files.path,
        )
    return listed


def _fingerprint(place: Store, files: Files, listed: list[Listed], *more: str) -> str:
    """Fingerprint of everything that decides what a run reads; equal ones read the same."""
    parts = [
        place.place,
        files.document,
        [[file.name, file.size, file.etag, file.modified] for file in listed],
    ]
    digest = hashlib.blake2b(json.dumps([*parts, *more]).encode(), digest_size=16)
    return f"{len(listed)} files {digest.hexdigest()}"
