"""Erasures: covered events must be nowhere, whatever the receipt says, and nothing else may be missing.

Checked are the tables' rows, every data file in their folders, reachable or not, every object of the raw
zone, and dead letters. Tables deleted earlier stay, as receipts say.
"""

import base64
import gzip
from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow.parquet as pq
from pyarrow import fs

from chaos.operators.events import Event
from chaos.operators.evidence import Evidence, Life
from chaos.operators.world import Receipt, World
from chaos.oracle import Finding, some
from chaos.sent import Position
from pulse_resources import object_store
from pulse_resources.settings import load_settings


def find_violations(world: World, evidence: Evidence) -> list[Finding]:
    """Traces of erased events, and events erased without a request."""
    events = world.positions()
    violations = [*_remains(world, evidence, events), *_too_much(world, evidence, events)]
    return [Finding(kind, world.tenant.slug, some(wrong)) for kind, wrong in violations if wrong]


def _covered(receipt: Receipt, position: Position, event: Event | None) -> bool:
    before = position[1] < receipt.covers.get(position[0], 0)
    return before and event is not None and (event.slug, event.person) == (receipt.slug, receipt.person)


def _remains(
    world: World, evidence: Evidence, events: dict[Position, Event]
) -> Iterator[tuple[str, list[Any]]]:
    erased = {
        position
        for position, event in events.items()
        if any(_covered(receipt, position, event) for receipt in world.receipts)
    }
    erased_events = {position: events[position] for position in erased}
    if not erased_events:
        return
    letters = [
        position
        for position in erased & evidence.letters.keys()
        if evidence.letters[position].payload or evidence.letters[position].event_id
    ]
    yield "erased, and still a dead letter", letters
    for life in evidence.lives:
        if not life.deleted:
            yield f"{life.slug}: erased, and still a row", sorted(erased & life.rows.keys())
            yield f"{life.slug}: erased, and still in a file", list(_in_files(life, erased_events))
    yield "erased, and still in the raw zone", list(_in_raw_zone(world, erased_events))


def _in_files(life: Life, erased_events: dict[Position, Event]) -> Iterator[tuple[str, Position]]:
    """Erased events in the table's folder, in reachable files or not.

    A position is not enough: an attempt on a lost topic read other events at the positions of later ones.
    """
    assert life.table
    for path in _listed(life.table.location()):
        if path.endswith(".parquet"):
            with object_store.file_system().open_input_file(path) as file:
                rows = pq.read_table(
                    file, columns=["_kafka_partition", "_offset", "id", "person"]
                ).to_pylist()
            for row in rows:
                place = row["_kafka_partition"], row["_offset"]
                if place in erased_events and {erased_events[place].event_id, erased_events[place].person} & {
                    row["id"],
                    row["person"],
                }:
                    yield path, place


def _in_raw_zone(world: World, erased_events: dict[Position, Event]) -> Iterator[tuple[str, Position]]:
    for path in _listed(world.tenant.raw_prefix(load_settings().object_store.bucket, "")):
        with object_store.file_system().open_input_stream(path, compression=None) as file:
            lines = gzip.decompress(file.read()).splitlines()
        for line in lines:
            place, payload = _line(line)
            if place in erased_events and _is_of(erased_events[place], payload):
                yield path, place


def _is_of(event: Event, payload: bytes) -> bool:
    """Whether a line is an event, or another of the same person in the same dataset, such as its replay."""

    def says(name: str, value: str | None) -> bool:
        return orjson.dumps({name: value})[1:-1] in payload

    return says("event_id", event.event_id) or (says("dataset", event.slug) and says("person", event.person))


def _line(line: bytes) -> tuple[Position, bytes]:
    """Position and payload of a raw-zone line."""
    head, event, payload = line.partition(b',"event":')
    origin = orjson.loads(head + b"}" if event else line)
    where = origin["partition"], origin["offset"]
    return where, payload if event else base64.b64decode(origin["bytes"])


def _listed(prefix: str) -> list[str]:
    folder = fs.FileSelector(object_store.key(prefix).rstrip("/"), allow_not_found=True, recursive=True)
    entries = object_store.file_system().get_file_info(folder)
    return [entry.path for entry in entries if entry.type is fs.FileType.File]


def _too_much(
    world: World, evidence: Evidence, events: dict[Position, Event]
) -> Iterator[tuple[str, list[Any]]]:
    letters = (p for p, letter in evidence.letters.items() if letter.resolution == "erased")
    wrong = []
    for position in {*evidence.erased, *letters}:
        event = events.get(position)
        if event and (event.slug, event.person) not in world.erasures_begun:
            wrong.append((position, event.event_id, event.person))
    yield "erased, and no one asked for it", wrong
