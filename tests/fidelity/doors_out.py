"""Doors out: each reads all rows of a dataset, as its users do."""

import io
import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
from support.engines import duck, rest, spark
from support.http import Api

from chaos.surroundings import PULSE
from fidelity import readings
from fidelity.lake_of_values import Lake
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.schemas.columns import Column, Kind
from pulse_pipelines.query.formats import ARROW, CSV, JSON, PARQUET

Rows = Sequence[Mapping[str, Any]]
Read = Callable[["Out", Dataset], dict[str, Any]]
"""The data of each row, by its id."""
_FIELD = re.compile(r'(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r\n)')


class Out(NamedTuple):
    """What doors out need."""

    lake: Lake
    catalog: Api

    @property
    def http(self) -> httpx.Client:
        return self.lake.http


def _data(rows: Rows, dataset: Dataset) -> dict[str, Any]:
    return {str(row["id"]): readings.data(row, dataset.columns) for row in rows}


def by_pyiceberg(out: Out, dataset: Dataset) -> dict[str, Any]:
    """PyIceberg."""
    table = rest(out.catalog, out.lake.guest).load_table(f"events.{dataset.slug}")
    return _data(table.scan().to_arrow().to_pylist(), dataset)


def by_duckdb(out: Out, dataset: Dataset) -> dict[str, Any]:
    """DuckDB."""
    with duck(out.catalog, out.lake.guest) as connection:
        return _data(connection.execute(f"FROM {dataset.slug}").to_arrow_table().to_pylist(), dataset)


def by_spark(out: Out, dataset: Dataset) -> dict[str, Any]:
    """Spark."""
    session, name = spark(out.catalog, out.lake.guest)
    return _data(session.sql(f"SELECT * FROM {name}.events.{dataset.slug}").toArrow().to_pylist(), dataset)


def _of_form(content: bytes, form: str, dataset: Dataset) -> dict[str, Any]:
    if form == ARROW:
        rows: Rows = pa.ipc.open_stream(content).read_all().to_pylist()
    elif form == PARQUET:
        rows = pq.read_table(io.BytesIO(content)).to_pylist()
    elif form == CSV:
        rows = [_typed(row, dataset.columns) for row in csv_rows(content.decode())]
    else:
        rows = readings.parsed(content)["rows"]
    return _data(rows, dataset)


def csv_rows(text: str) -> list[dict[str, str | None]]:
    """Rows of CSV, of which a quoted empty field is an empty text, and an empty one is null."""
    lines: list[list[str | None]] = [[]]
    for match in _FIELD.finditer(text):
        quoted, plain, end = match.groups()
        lines[-1].append(plain or None if quoted is None else quoted.replace('""', '"'))
        if end != ",":
            lines.append([])
    header, *rows = lines[:-1]
    return [dict(zip(map(str, header), row, strict=True)) for row in rows]


def _typed(row: Mapping[str, Any], columns: Sequence[Column]) -> dict[str, Any]:
    return dict(row) | {c.name: _of_text(row[c.name], c.type.kind) for c in columns}


def _of_text(text: str | None, kind: Kind) -> Any:
    if text is None or kind in (Kind.STRING, Kind.JSON, Kind.TIMESTAMP, Kind.DATE):
        return text
    if kind in (Kind.LONG, Kind.DOUBLE):
        return Decimal(text)
    return readings.parsed(text)


def preview(form: str) -> Read:
    """`GET /v1/datasets/{slug}/preview`."""

    def read(out: Out, dataset: Dataset) -> dict[str, Any]:
        path = f"/v1/datasets/{dataset.slug}/preview"
        answer = out.http.get(path, params={"limit": 10_000}, headers={"Accept": form})
        return _of_form(answer.raise_for_status().content, form, dataset)

    return read


def sql(form: str) -> Read:
    """`POST /v1/sql`."""

    def read(out: Out, dataset: Dataset) -> dict[str, Any]:
        body = {"sql": f"FROM {dataset.slug}"}
        answer = out.http.post("/v1/sql", json=body, headers={"Accept": form})
        return _of_form(answer.raise_for_status().content, form, dataset)

    return read


def feed(out: Out, dataset: Dataset) -> dict[str, Any]:
    """`GET /v1/datasets/{slug}/entities`."""
    path, since, entities = f"/v1/datasets/{dataset.slug}/entities", None, {}
    while True:
        parameters = {"limit": 1_000} | ({"since": since} if since else {})
        answer = out.http.get(path, params=parameters).raise_for_status()
        for line in answer.content.splitlines():
            version = readings.parsed(line)
            entities[version["_id"]] = {n: item for n, item in version.items() if not n.startswith("_")}
        if since == (since := answer.headers["Pulse-Since"]):
            return entities


def mcp(out: Out, dataset: Dataset) -> dict[str, Any]:
    """The tool `query`, of the values of two doors in: an answer has 256 KiB at most."""
    rows: list[Any] = []
    following: dict[str, Any] | None = {}
    some = f"FROM {dataset.slug} WHERE id LIKE 'array#%' OR id LIKE 'entities#%' ORDER BY id"
    limit = 60 if dataset.slug.startswith("rich") else 250
    headers = {"Accept": "application/json, text/event-stream"}
    while following is not None:
        arguments = {"sql": some, "limit": limit} | following
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        request = call | {"params": {"name": "query", "arguments": arguments}}
        answer = out.http.post("/mcp", json=request, headers=headers).raise_for_status()
        text = answer.text.partition("data: ")[2] if answer.text.startswith("event") else answer.text
        content = readings.parsed(json.loads(text)["result"]["content"][0]["text"])
        rows += content["untrusted_data"]["rows"]
        following = content["next"] and json.loads(json.dumps(content["next"], default=int))
    return _data(rows, dataset)


def terminal(out: Out, dataset: Dataset) -> dict[str, Any]:
    """`pulse sql --json`."""
    command = [PULSE, "sql", out.lake.owner.tenant.slug, f"FROM {dataset.slug}", "--json"]
    done = subprocess.run(command, capture_output=True, check=True)
    return _of_form(done.stdout, JSON, dataset)


EVENTS = ("plain", "rich", "bare")
ENTITIES = tuple(f"{slug}_entities" for slug in EVENTS)
DOORS: Mapping[str, tuple[Read, Sequence[str]]] = {
    "pyiceberg": (by_pyiceberg, (*EVENTS, *ENTITIES)),
    "duckdb": (by_duckdb, (*EVENTS, *ENTITIES)),
    "spark": (by_spark, (*EVENTS, *ENTITIES)),
    "preview": (preview(JSON), (*EVENTS, *ENTITIES)),
    "preview_csv": (preview(CSV), (*EVENTS, *ENTITIES)),
    "preview_arrow": (preview(ARROW), (*EVENTS, *ENTITIES)),
    "sql": (sql(JSON), (*EVENTS, *ENTITIES)),
    "sql_csv": (sql(CSV), (*EVENTS, *ENTITIES)),
    "sql_arrow": (sql(ARROW), (*EVENTS, *ENTITIES)),
    "sql_parquet": (sql(PARQUET), (*EVENTS, *ENTITIES)),
    "mcp": (mcp, (*EVENTS, *ENTITIES)),
    "feed": (feed, ENTITIES),
    "terminal": (terminal, ("rich", "bare_entities")),
}
ONLY: Mapping[str, Sequence[str]] = {"mcp": ("array", "entities"), "feed": ("entities", "sync")}
"""Doors in whose values a door out reads, where it does not read all."""
