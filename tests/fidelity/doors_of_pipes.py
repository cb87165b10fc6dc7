"""Doors in that are pipes: files, a feed and a transform; each brings values into datasets of entities."""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from support.files import web
from support.lake import spark

from chaos.sources import Folder, stored_source
from fidelity import readings
from fidelity.lake_of_values import PLACES, Lake, encoded, entity
from fidelity.zoo import PROPERTIES, RICH, Value
from pulse_pipelines import pipes, registry
from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.entities import syncs
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
        properties = {n: definition for n, definition in (PROPERTIES | RICH).items() if not n.startswith("_")}
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
    with stored_source(lake.owner.tenant, folder.address, door):
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
    with stored_source(lake.owner.tenant, folder.address, door):
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


def parquet_files(lake: Lake, door: str) -> None:
    """Files of Parquet: values that its types have, in columns of these types."""
    folder = Folder()
    some = lake.of(door, "column", only=lambda value: parquet_cell(value) is not None)
    unsigned = [one for one in some if one.value.kind == "integer" and int(one.value.text) > MOST]
    signed = [one for one in some if one not in unsigned]
    for number, (rows, types) in enumerate(((signed, TYPES), (unsigned, {"integer": pa.uint64()}))):
        columns: dict[str, Any] = {KEY: [one.event_id for one in rows]}
        for name, kind in types.items():
            cells = [
                parquet_cell(one.value) if json.loads(one.value.member) == name else None for one in rows
            ]
            columns[name] = pa.array(cells, kind)
        content = io.BytesIO()
        pq.write_table(pa.table(columns), content)
        folder.write(f"values-{number}.parquet", content.getvalue())
    with stored_source(lake.owner.tenant, folder.address, door):
        _bring(lake, door, "column", path="values-*.parquet", key=[KEY])


MOST = 2**63 - 1
TYPES: Mapping[str, pa.DataType] = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "text": pa.string(),
    "moment": pa.timestamp("us", "UTC"),
    "day": pa.date32(),
    "flag": pa.bool_(),
    "texts": pa.list_(pa.string()),
    "numbers": pa.list_(pa.float64()),
    "integers": pa.list_(pa.int64()),
    "flags": pa.list_(pa.bool_()),
    "nested": pa.list_(pa.list_(pa.int64())),
}
"""Types of Parquet's columns, by property."""


def parquet_cell(value: Value) -> Any:
    """A value as a cell of its column's type; None if the type does not have it."""
    name = json.loads(value.member)
    try:
        decoded = json.loads(value.text)
        if value.kind == "integer":
            return decoded if type(decoded) is int and -MOST <= decoded + 1 <= 2**64 else None
        if value.kind == "number":
            return float(decoded) if Decimal(repr(float(decoded))) == Decimal(value.text) else None
        if value.kind == "moment":
            seconds = None if ":60" in decoded else readings.instant(decoded)
            micros = None if seconds is None else seconds * 1_000_000
            return int(micros) if micros is not None and micros == int(micros) else None
        if value.kind == "day":
            return date.fromisoformat(decoded) if len(decoded) == 10 and decoded[7] == "-" else None
        pa.array([decoded], TYPES[name]).to_pylist()
        return decoded
    except (KeyError, ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException):
        return None


def transform(lake: Lake, door: str) -> None:
    """A transform of what the lines of a file became: of columns, by name."""
    names = (*_IN_CSV, "texts", "numbers", "integers", "flags", "nested")
    landed_ids = {row["id"] for row in lake.owner.rows(dataset("ndjson", "column"), "id")}
    for one in lake.of(door, "column", only=lambda value: json.loads(value.member) in names):
        if one.event_id.replace(door, "ndjson") not in landed_ids:
            del lake.sent[one.event_id]
    sql = (
        f"SELECT replace(id, 'ndjson', '{door}') AS id, {', '.join(names)} FROM {dataset('ndjson', 'column')}"
    )
    slug = dataset(door, "column")
    pipes.create(lake.owner.tenant, definition({"pipe": slug, "transform": sql, "dataset": slug}))
    syncs.allow(lake.owner.tenant, slug, 1)
    run(spark(), lake.owner.tenant, slug, 2)


def feed(lake: Lake, door: str) -> None:
    """A service that speaks the protocol of entities."""
    pages = {}
    for place in PLACES:
        some = lake.of(door, place, only=is_json)
        pages[place] = [encoded(entity(one)) for one in some]

    def answer(_: str, path: str, __: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        url = urlsplit(path)
        query = parse_qs(url.query)
        after = int(query.get("since", ["1-0"])[0].partition("-")[2])
        lines = pages[url.path.strip("/")][after : after + int(query["limit"][0])]
        return 200, {"Pulse-Since": f"1-{after + len(lines)}"}, b"".join(line + b"\n" for line in lines)

    with web(answer) as address, stored_source(lake.owner.tenant, address, door):
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
    "parquet": parquet_files,
    "feed": feed,
}
FOLLOWING: Mapping[str, Callable[[Lake, str], None]] = {"transform": transform}
"""Doors whose source is what another one brought, once it has landed."""


def refusals(lake: Lake) -> dict[str, str]:
    """Why values became dead letters, by id; of a line that is no row, by its place in the file."""
    reasons = {}
    lines = {
        place: [one.event_id for one in lake.sent.values() if (one.door, one.place) == ("ndjson", place)]
        for place in PLACES
    }
    for letter in lake.owner.dead_letters():
        payload, where = bytes(letter["payload"]), f" at {letter['pointer']}" if letter["pointer"] else ""
        if known := _ID.search(payload):
            reasons[known[1].decode()] = f"{letter['reason']}{where}: {letter['detail']}"
        else:
            context = json.loads(payload)["context"]
            key = lines[context["file"].removesuffix(".ndjson")][context["line"] - 1]
            reasons[key] = f"{letter['reason']} at /line {context['line']}: {context['error']}"
    return reasons
