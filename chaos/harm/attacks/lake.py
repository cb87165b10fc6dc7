"""Files of a tenant's own table, written by its key: small ones that become gigabytes, and large metadata."""

import itertools
from typing import Any

import orjson
import pyarrow as pa
from pyiceberg.table import Table

from chaos import external
from chaos.harm import hostile, wire
from chaos.harm.attack import Attack, Attacker, may
from pulse_pipelines import registry
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import catalog, metadata
from pulse_pipelines.registry import keys
from pulse_resources import object_store
from pulse_resources.settings import load_settings

BOMB = b'{"snapshots": [' + b"{}," * (20 * 2**20) + b"{}]}"
NAMESPACE, TABLE = external.TABLE
AT_ONCE = 8
SNAPSHOTS, LARGE = 10_000, "00001-large.metadata.json"
UNPACKED = 2 * 1024**3
ENTRIES = 1_000_000
FIELDS, SCHEMAS = 1_000, 1_500


def _overwrite_metadata(tenant: Tenant) -> None:
    """Create a table, and replace its metadata file, as each holder of its vended key can."""
    external.create(tenant, load_settings().lake.linked_url)
    object_store.put(catalog.location(tenant, (NAMESPACE,), TABLE), BOMB)


def _enlarge_metadata(tenant: Tenant) -> None:
    """Create a table, and write metadata for it that is large and permitted: to parse it takes a second."""
    external.create(tenant, load_settings().lake.linked_url)
    current = metadata.read(tenant, catalog.location(tenant, (NAMESPACE,), TABLE))
    document = current.document()
    summary = {"operation": "append"} | {f"total-number-of-things-{n}": "1234567890" for n in range(21)}
    snapshot = {"timestamp-ms": document["last-updated-ms"], "schema-id": 0, "summary": summary}
    document |= {
        "last-sequence-number": SNAPSHOTS,
        "snapshots": [
            {"snapshot-id": n, "sequence-number": n, "manifest-list": f"{current.location}/metadata/{n}.avro"}
            | snapshot
            for n in range(1, SNAPSHOTS)
        ],
    }
    object_store.put(f"{current.location}/metadata/{LARGE}", orjson.dumps(document))


def _with_row(tenant: Tenant) -> Table:
    """A table with one row."""
    url = load_settings().lake.linked_url
    external.create(tenant, url)
    table: Table = external.engine(tenant, url).load_table(external.TABLE)
    table.append(pa.table({"id": [1]}, external.SCHEMA))
    return table


def _overwrite_manifest_list(tenant: Tenant) -> None:
    """Replace the list of a table's manifests by 2 MB that unpack to two gigabytes."""
    snapshot = _with_row(tenant).current_snapshot()
    assert snapshot, "it has a row"
    with object_store.file_system().open_input_file(object_store.key(snapshot.manifest_list)) as source:
        like = source.read()
    object_store.put(snapshot.manifest_list, hostile.avro(like, UNPACKED))


def _overwrite_manifest(tenant: Tenant) -> None:
    """Replace a table's manifest by two megabytes that unpack to a million entries of the same file."""
    table = _with_row(tenant)
    snapshot = table.current_snapshot()
    assert snapshot, "it has a row"
    (manifest,) = snapshot.manifests(table.io)
    with object_store.file_system().open_input_file(object_store.key(manifest.manifest_path)) as source:
        like = source.read()
    object_store.put(manifest.manifest_path, hostile.repeated(like, ENTRIES))


def _overwrite_data(tenant: Tenant) -> None:
    """Replace a table's data file by one whose footer would become gigabytes."""
    (task,) = _with_row(tenant).scan().plan_files()
    object_store.put(task.file.file_path, hostile.parquet(80))


async def _write(attacker: Attacker) -> None:
    """Load, commit and register such a table at the same time."""
    tenant = registry.find_tenant(attacker.target.tenant)
    location = metadata.read(tenant, catalog.location(tenant, (NAMESPACE,), TABLE)).location
    key, at = engine_key(tenant), f"/v1/namespaces/{NAMESPACE}"
    body = {
        "name": TABLE,
        "metadata-location": f"{location}/metadata/{LARGE}",
        "overwrite": True,
    }
    change = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}
    requests = (
        wire.request("POST", f"{at}/register", key, body),
        wire.request("POST", f"{at}/tables/{TABLE}", key, change),
        wire.request("GET", f"{at}/tables/{TABLE}?snapshots=refs", key),
    )
    await attacker.flood(itertools.cycle(requests), AT_ONCE, port=load_settings().lake.port)


def engine_key(tenant: Tenant) -> str:
    """A new key of the tenant, as its engines have one."""
    return keys.issue_key(tenant, "engine", (KeyScope.LAKE_READ, KeyScope.LAKE_WRITE)).text


async def _query(attacker: Attacker) -> None:
    body = {"sql": f"SELECT sum(id) FROM {NAMESPACE}.{TABLE}"}
    await attacker.flood(wire.request("POST", "/v1/sql", attacker.key("lake:read"), body), AT_ONCE)


def _create_table(tenant: Tenant) -> None:
    external.create(tenant, load_settings().lake.linked_url)


def _with_ring(tenant: Tenant) -> None:
    """A table whose current snapshot is its own ancestor."""
    table = _with_row(tenant)
    document = orjson.loads(table.metadata.model_dump_json(exclude_none=True))
    (snapshot,) = document["snapshots"]
    snapshot["parent-snapshot-id"] = snapshot["snapshot-id"]
    object_store.put(table.metadata_location, orjson.dumps(document))


async def _query_earlier(attacker: Attacker) -> None:
    """Ask for a moment before all snapshots."""
    body = {"sql": f"SELECT sum(id) FROM {NAMESPACE}.{TABLE}", "as_of": "2020-01-01T00:00:00Z"}
    await attacker.flood(wire.request("POST", "/v1/sql", attacker.key("lake:read"), body), AT_ONCE)


def _partition(tenant: Tenant) -> None:
    """A table whose 240 kB of metadata have a thousand partition fields, and more schemas."""
    table = _with_row(tenant)
    document = orjson.loads(table.metadata.model_dump_json(exclude_none=True))
    (schema,) = document["schemas"]
    fields = [
        {"source-id": 1, "field-id": 1_000 + n, "transform": "identity", "name": f"p{n}"}
        for n in range(FIELDS)
    ]
    document |= {
        "schemas": [schema | {"schema-id": n} for n in range(SCHEMAS)],
        "partition-specs": [*document["partition-specs"], {"spec-id": 1, "fields": fields}],
    }
    object_store.put(table.metadata_location, orjson.dumps(document))


async def _create(attacker: Attacker) -> None:
    """Create tables with two columns that contain each other."""

    def column(number: int, *members: dict[str, Any]) -> dict[str, Any]:
        kind = {"type": "struct", "fields": list(members)} if members else "int"
        return {"id": number, "name": f"c{number}", "required": True, "type": kind}

    fields = [column(1, column(2, column(3))), column(2, column(1, column(4)))]
    schema = {"type": "struct", "identifier-field-ids": [3], "fields": fields}
    tenant = registry.find_tenant(attacker.target.tenant)
    at, body = f"/v1/namespaces/{NAMESPACE}/tables", {"name": "ring", "schema": schema}
    request = wire.request("POST", at, engine_key(tenant), body)
    await attacker.flood(request, AT_ONCE, port=load_settings().lake.port)


async def _register(attacker: Attacker) -> None:
    """Register the metadata as another table, which the catalog has to read each time."""
    tenant = registry.find_tenant(attacker.target.tenant)
    location = catalog.location(tenant, (NAMESPACE,), TABLE)
    body = {"name": "again", "metadata-location": location, "overwrite": True}
    request = wire.request("POST", f"/v1/namespaces/{NAMESPACE}/register", engine_key(tenant), body)
    await attacker.flood(request, AT_ONCE, port=load_settings().lake.port)


ATTACKS = (
    Attack(
        "a query of a table whose metadata is 60 MB of `{},{},…`",
        "lake:read, lake:write",
        _query,
        may(422, 429, 503),
        prepare=_overwrite_metadata,
    ),
    Attack(
        "such metadata registered as a table, in a loop",
        "lake:read, lake:write",
        _register,
        may(400, 429, 503),
        prepare=_overwrite_metadata,
    ),
    Attack(
        "11 MB of permitted metadata: loaded, committed and registered at the same time",
        "lake:read, lake:write",
        _write,
        may(200, 409, 429, 503),
        prepare=_enlarge_metadata,
    ),
    Attack(
        "a query of a table whose list of manifests unpacks to two gigabytes",
        "lake:read, lake:write",
        _query,
        may(422, 429, 503),
        prepare=_overwrite_manifest_list,
    ),
    Attack(
        "a query of a table whose manifest, of two megabytes, names a file a million times",
        "lake:read, lake:write",
        _query,
        may(422, 429, 503),
        prepare=_overwrite_manifest,
    ),
    Attack(
        "a query of an earlier moment of a table whose snapshot is its own ancestor",
        "lake:read, lake:write",
        _query_earlier,
        may(404, 429, 503),
        prepare=_with_ring,
    ),
    Attack(
        "a query of a table with 1,000 partition fields and 1,500 schemas",
        "lake:read, lake:write",
        _query,
        may(200, 422, 429, 503),
        prepare=_partition,
    ),
    Attack(
        "tables created whose columns contain each other",
        "lake:read, lake:write",
        _create,
        may(400, 429, 503),
        prepare=_create_table,
    ),
    Attack(
        "a query of a table whose Parquet footer would become five gigabytes",
        "lake:read, lake:write",
        _query,
        may(422, 429, 503),
        prepare=_overwrite_data,
    ),
)
