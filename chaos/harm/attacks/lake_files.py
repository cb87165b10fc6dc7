"""Own tables whose data and delete files become gigabytes, and schemas of many columns."""

import asyncio
import itertools
import uuid

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from chaos import batches, external
from chaos.harm import hostile, wire
from chaos.harm.attack import Attack, Attacker, may
from chaos.harm.attacks.lake import AT_ONCE, NAMESPACE, engine_key
from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import catalog, metadata
from pulse_resources import iceberg, object_store
from pulse_resources.settings import load_settings

DELETED, PAGE, SNAPSHOT, COLUMNS = 3_000_000, 2**30, 4_242, 100_000
WIDE = "00001-wide.metadata.json"
OTHERS = "others"
"""Table property with the slugs of the other tenants of an attack."""
DELETES, PAGES, FOOTER = "deletes", "pages", "footer"


class _Manifest(ManifestWriterV2):
    kind = ManifestContent.DATA

    def content(self) -> ManifestContent:
        return self.kind


def _write_tables(tenant: Tenant) -> None:
    """Tables with many equality deletes, with a page that unpacks to a gigabyte, and with a large footer."""
    client = external.engine(tenant, load_settings().lake.linked_url)
    client.create_namespace(NAMESPACE)
    ids = pa.schema([external.SCHEMA.field("id").with_metadata({"PARQUET:field_id": "1"})])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": range(DELETED)}, ids), sink, compression="zstd")
    contents = {DELETES: sink.getvalue().to_pybytes(), PAGES: hostile.page(PAGE), FOOTER: hostile.parquet(80)}
    for name, content in contents.items():
        table = client.create_table((NAMESPACE, name), external.SCHEMA)
        table.append(pa.table({"id": [1]}, external.SCHEMA))
        path = f"{table.location()}/data/{uuid.uuid4()}.parquet"
        object_store.put(path, content)
        _enter(table, path, len(content), deletes=name == DELETES)


def _enter(table: Table, path: str, size: int, *, deletes: bool) -> None:
    """Make a snapshot current that adds a data file, or a file of equality deletes, to what is there."""
    current = table.current_snapshot()
    assert current, "it has a row"
    at, io = f"{table.location()}/metadata", iceberg.file_io()
    added, listed = _manifest(table, at, path, size, deletes=deletes), f"{at}/{uuid.uuid4()}.avro"
    number = current.sequence_number + 1 if current.sequence_number else 2
    with write_manifest_list(2, io.new_output(listed), SNAPSHOT, None, number, "null") as writer:
        writer.add_manifests([*current.manifests(io), added])
    document = orjson.loads(table.metadata.model_dump_json(exclude_none=True))
    snapshot = {
        "snapshot-id": SNAPSHOT,
        "sequence-number": number,
        "timestamp-ms": document["last-updated-ms"],
    }
    snapshot |= {"manifest-list": listed, "summary": {"operation": "overwrite"}, "schema-id": 0}
    document |= {"snapshots": [snapshot], "current-snapshot-id": SNAPSHOT, "snapshot-log": []}
    document |= {
        "refs": {"main": {"snapshot-id": SNAPSHOT, "type": "branch"}},
        "last-sequence-number": number,
    }
    object_store.put(table.metadata_location, orjson.dumps(document))


def _manifest(table: Table, at: str, path: str, size: int, *, deletes: bool) -> ManifestFile:
    output = iceberg.file_io().new_output(f"{at}/{uuid.uuid4()}-m0.avro")
    writer = _Manifest(UNPARTITIONED_PARTITION_SPEC, table.schema(), output, SNAPSHOT, "null")
    writer.kind = ManifestContent.DELETES if deletes else ManifestContent.DATA
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES if deletes else DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=DELETED if deletes else PAGE // 8,
        file_size_in_bytes=size,
        equality_ids=[1] if deletes else None,
    )
    entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=SNAPSHOT, data_file=file)
    with writer:
        writer.add_entry(entry)
    return writer.to_manifest_file()


async def _query(attacker: Attacker) -> None:
    """Query each table, and all of them at once."""
    counts = [f"(SELECT count(id) FROM {NAMESPACE}.{name})" for name in (DELETES, PAGES, FOOTER)]
    queries = [f"SELECT {count}" for count in (*counts, " + ".join(counts))]
    key = attacker.key("lake:read")
    requests = [wire.request("POST", "/v1/sql", key, {"sql": query}) for query in queries]
    await attacker.flood(itertools.cycle(requests), AT_ONCE)


def _widen(tenant: Tenant, *other_tenants: Tenant) -> None:
    """A table, and a metadata file of it that has 100,000 columns, and names other tenants."""
    external.create(tenant, load_settings().lake.linked_url)
    current = metadata.read(tenant, catalog.location(tenant, (NAMESPACE,), external.TABLE[1]))
    document = current.document()
    fields = [{"id": n, "name": f"c{n}", "required": False, "type": "long"} for n in range(1, COLUMNS)]
    document |= {"schemas": [{"type": "struct", "schema-id": 0, "fields": fields}], "last-column-id": COLUMNS}
    document["properties"] |= {OTHERS: " ".join(other.slug for other in other_tenants)}
    object_store.put(f"{current.location}/metadata/{WIDE}", orjson.dumps(document))


def _widen_three(tenant: Tenant) -> None:
    """Such a table of this tenant, and of two new ones."""
    new_tenants = [batches.make_tenant(with_states=False) for _ in range(2)]
    for new_tenant in new_tenants:
        _widen(new_tenant)
    _widen(tenant, *new_tenants)


async def _register_of_three(attacker: Attacker) -> None:
    """Three tenants register such metadata at the same time, each over several connections."""
    tenant = registry.find_tenant(attacker.target.tenant)
    wide = metadata.read(tenant, _wide(tenant), bypass_cache=True).document()
    other_tenants = [registry.find_tenant(slug) for slug in wide["properties"][OTHERS].split()]
    async with asyncio.TaskGroup() as group:
        for owner in (tenant, *other_tenants):
            group.create_task(_register(attacker, owner))


def _wide(tenant: Tenant) -> str:
    at = catalog.location(tenant, (NAMESPACE,), external.TABLE[1])
    return f"{metadata.read(tenant, at).location}/metadata/{WIDE}"


async def _register(attacker: Attacker, tenant: Tenant) -> None:
    body = {"name": external.TABLE[1], "metadata-location": _wide(tenant), "overwrite": True}
    request = wire.request("POST", f"/v1/namespaces/{NAMESPACE}/register", engine_key(tenant), body)
    await attacker.flood(request, AT_ONCE // 2, port=load_settings().lake.port)


ATTACKS = (
    Attack(
        "queries of tables with 3 million deletes, a page of a gigabyte, a footer of five, and of all three",
        "lake:read, lake:write",
        _query,
        may(422, 429, 503),
        prepare=_write_tables,
    ),
    Attack(
        "100,000 columns registered by three tenants at the same time",
        "lake:read, lake:write",
        _register_of_three,
        may(200, 409, 429, 503),
        prepare=_widen_three,
    ),
)
