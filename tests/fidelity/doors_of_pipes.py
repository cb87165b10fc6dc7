"""Doors in that are pipes: files, and a feed; each brings all values into datasets of entities."""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.files import web
from support.lake import spark

from chaos.sources import Folder, known_as
from fidelity.lake_of_values import PLACES, Lake, encoded, entity
from fidelity.zoo import PROPERTIES, RICH, Value
from pulse_pipelines import pipes, registry
from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.pipes.rows import members
from pulse_pipelines.pipes.run import run

_ID = re.compile(rb'"event_id"\s*:\s*"([^"]+)"')
KEY = "key"
"""The column of a file that names the row."""
_IN_CSV = ("integer", "number", "text", "moment", "day", "flag")


def dataset(door: str, place: str) -> str:
    """The dataset that a door brings the values of a place to."""
    return f"{door}_{place}"


def make_datasets(lake: Lake, door: str) -> None:
    """The datasets that a door brings values to."""
    for place in PLACES:
        properties = {n: said for n, said in (PROPERTIES | RICH).items() if not n.startswith("_")}
        document = {"type": "object", "properties": properties if place == "column" else {}}
        slug = dataset(door, place)
        uri = registry.publish_schema(lake.owner.tenant, slug, json.dumps(document)).schema_uri
        registry.create_dataset(lake.owner.tenant, slug, uri, kind=DatasetKind.ENTITIES)


def _bring(lake: Lake, door: str, place: str, **source: Any) -> None:
    slug = dataset(door, place)
    pipes.create(lake.owner.tenant, definition({"pipe": slug, "source": door, "dataset": slug} | source))
    run(spark(), lake.owner.tenant, slug, 2)


def _is_line(value: Value) -> bool:
    return "\n" not in value.text


def ndjson_file(lake: Lake, door: str) -> None:
    """A file of lines."""
    folder = Folder()
    with known_as(lake.owner.tenant, folder.address, door):
        for place in PLACES:
            some = lake.of(door, place, only=_is_line)
            folder.write(f"{place}.ndjson", encoded("".join(f"{entity(one)}\n" for one in some)))
            _bring(lake, door, place, path=f"{place}.ndjson")


def csv_file(lake: Lake, door: str) -> None:
    """A file of comma-separated values: of plain types, in columns that the schema declares."""
    some = lake.of(door, "column", only=lambda value: csv_cell(value) is not None)
    rows = io.StringIO(newline="")
    writer = csv.writer(rows, quoting=csv.QUOTE_MINIMAL)
    writer.writerow([KEY, *_IN_CSV])
    for one in some:
        writer.writerow(
            [one.event_id, *(csv_cell(one.value) if kind == one.value.kind else "" for kind in _IN_CSV)]
        )
    folder = Folder()
    folder.write("values.csv", encoded(rows.getvalue()))
    with known_as(lake.owner.tenant, folder.address, door):
        _bring(lake, door, "column", path="values.csv", key=[KEY])


def csv_cell(value: Value) -> str | None:
    """A value as a cell: a text as it is, all else as JSON; None if it is neither, or of another kind."""
    try:
        decoded = json.loads(value.text) if value.kind in _IN_CSV else None
        encoded(str(decoded)).decode()
    except (ValueError, RecursionError):
        return None
    if isinstance(decoded, str):
        return decoded if value.kind in ("text", "moment", "day") else None
    return None if decoded is None else value.text


def feed(lake: Lake, door: str) -> None:
    """A service that speaks the protocol of entities."""
    pages = {}
    for place in PLACES:
        some = lake.of(door, place, only=is_json)
        pages[place] = [encoded(entity(one)) for one in some]

    def answer(_: str, path: str, __: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        asked = urlsplit(path)
        query = parse_qs(asked.query)
        after = int(query.get("since", ["1-0"])[0].partition("-")[2])
        lines = pages[asked.path.strip("/")][after : after + int(query["limit"][0])]
        return 200, {"Pulse-Since": f"1-{after + len(lines)}"}, b"".join(line + b"\n" for line in lines)

    with web(answer) as address, known_as(lake.owner.tenant, address, door):
        for place in PLACES:
            _bring(lake, door, place, feed=f"/{place}")


def is_json(value: Value) -> bool:
    """Whether a feed may have the value: one line that is no JSON spoils its page."""
    try:
        members(encoded(f"{{{value.member}: {value.text}}}"))
    except ValueError:
        return False
    return True


DOORS: Mapping[str, Callable[[Lake, str], None]] = {
    "ndjson": ndjson_file,
    "csv": csv_file,
    "feed": feed,
}


def refusals(lake: Lake) -> dict[str, str]:
    """Why values became dead letters, by id; of a line that is no row, by its place in the file."""
    found = {}
    lines = {
        place: [one.event_id for one in lake.sent.values() if (one.door, one.place) == ("ndjson", place)]
        for place in PLACES
    }
    for letter in lake.owner.dead_letters():
        payload, where = bytes(letter["payload"]), f" at {letter['pointer']}" if letter["pointer"] else ""
        if known := _ID.search(payload):
            found[known[1].decode()] = f"{letter['reason']}{where}: {letter['detail']}"
        else:
            context = json.loads(payload)["context"]
            key = lines[context["file"].removesuffix(".ndjson")][context["line"] - 1]
            found[key] = f"{letter['reason']} at /line {context['line']}: {context['error']}"
    return found
