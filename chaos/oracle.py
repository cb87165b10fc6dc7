"""Oracle: verifies from the outside what became of every message sent.

Rows are read from the tables by three engines, dead letters from their topic, files from the object store.
Only duplicates are known from the ledger alone, since they leave no other trace.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs
from pyiceberg.table import Table
from pyspark.sql.connect.session import SparkSession

from chaos import states
from chaos.load import SCHEMAS
from chaos.sent import Position, Sent, messages
from pulse_pipelines import dead_letters, registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.query import duckdb_pool
from pulse_resources import iceberg, object_store, postgres
from pulse_resources.errors import PulseError

SHOWN = 3
"""Examples named per finding; its count is always exact."""

COPIES = "SELECT partition, duplicate_offsets FROM ingest_ranges WHERE settled_at IS NOT NULL"


class Finding(NamedTuple):
    """A violated invariant."""

    kind: str
    tenant: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} [tenant={self.tenant}]: {self.detail}"


@dataclass
class Lake:
    """Data of one tenant."""

    tables: dict[str, Table] = field(default_factory=dict)
    rows: dict[str, pa.Table] = field(default_factory=dict)
    """Rows by dataset, as read by PyIceberg."""
    copies: set[Position] = field(default_factory=set)
    letters: dict[Position, tuple[bytes | None, str]] = field(default_factory=dict)
    """Payload and reason by position, from the topic."""

    @classmethod
    def of(cls, tenant: Tenant) -> "Lake":
        lake = cls()
        for slug in SCHEMAS:
            location = registry.current_table(tenant, slug).metadata_location
            lake.tables[slug] = iceberg.load_table((tenant.namespace, slug), location)
            lake.rows[slug] = lake.tables[slug].scan().to_arrow()
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
            for partition, spans in connection.execute(COPIES):
                lake.copies |= {(partition, at) for span in spans for at in range(span.lower, span.upper)}
        lake.letters = dict(published(tenant))
        return lake

    def positions(self) -> Iterator[Position]:
        """Position of each row."""
        for rows in self.rows.values():
            yield from ((partition, offset) for partition, offset, _ in _positions(rows).elements())


def find_violations(sent: Sequence[Sent], spark: SparkSession | None = None) -> list[Finding]:
    """Find all violated invariants; empty when everything is right.

    Args:
        sent: messages by tenant, all of them settled.
        spark: if given, Spark reads the tables, too.
    """
    findings: list[Finding] = []
    lakes: dict[str, Lake] = {}
    for owner in sent:
        owner.locate()
        if unlocated := owner.unlocated():
            findings.append(Finding("acknowledged, and not in the topic", owner.tenant.slug, some(unlocated)))
        try:
            lake = lakes[owner.tenant.slug] = Lake.of(owner.tenant)
        except (OSError, PulseError) as error:
            findings.append(Finding("a table that cannot be read", owner.tenant.slug, str(error)))
            continue
        for kind, wrong in (
            *_by_position(owner, lake),
            *_by_id(owner, lake),
            *_by_content(owner, lake),
            *_by_engine(owner.tenant, lake, spark),
            *_by_state(owner.tenant, lake),
        ):
            if wrong:
                findings.append(Finding(kind, owner.tenant.slug, some(wrong)))
    findings.extend(by_file(lakes))
    return findings


def _by_position(sent: Sent, lake: Lake) -> Iterator[tuple[str, list[Any]]]:
    """Check sent = landed + duplicates + dead-lettered, message by message."""
    became: Counter[Position] = Counter(lake.positions())
    became.update(lake.copies)
    became.update(lake.letters.keys())
    yield "lost", [p for p in sent.events if not became[p]]
    yield "double", [p for p, count in became.items() if count > 1]
    yield "from nowhere", [] if sent.doubtful else [p for p in became if p not in sent.events]
    yield (
        "wrong dead letter",
        [
            (position, reason, event.reason)
            for position, (payload, reason) in lake.letters.items()
            if (event := sent.events.get(position)) and (payload, reason) != (event.payload, event.reason)
        ],
    )
    bad = {position for position, event in sent.events.items() if event.reason}
    yield "bad, and not a dead letter", sorted(bad - lake.letters.keys())


def _by_id(sent: Sent, lake: Lake) -> Iterator[tuple[str, list[Any]]]:
    """Check that each valid event is one row of its dataset, whatever positions say."""
    valid = sent.valid()
    for slug, rows in lake.rows.items():
        counted = Counter(rows.column("id").to_pylist())
        yield f"{slug}: lost ids", [i for i in valid[slug] if not counted[i]]
        yield f"{slug}: double ids", [i for i, count in counted.items() if count > 1]
        expected_ids = valid[slug].keys() | {event.event_id for event in sent.doubtful}
        yield f"{slug}: ids from nowhere", [i for i in counted if i not in expected_ids]


def _by_content(sent: Sent, lake: Lake) -> Iterator[tuple[str, list[Any]]]:
    """Check that each row has its event's content and position."""
    for slug, rows in lake.rows.items():
        wrong = []
        for row in rows.to_pylist():
            if event := sent.events.get((row["_kafka_partition"], row["_offset"])):
                landed = (slug, row["id"], *map(row.get, event.fields))
                if landed != (event.dataset, event.event_id, *event.fields.values()):
                    wrong.append(row["id"])
        yield f"{slug}: rows that differ from their event", wrong


def _by_engine(tenant: Tenant, lake: Lake, spark: SparkSession | None) -> Iterator[tuple[str, list[Any]]]:
    """Check that DuckDB and Spark see the same rows as PyIceberg."""
    for slug, table in lake.tables.items():
        expected = _positions(lake.rows[slug])
        with duckdb_pool.connect() as connection:
            query = f"SELECT _kafka_partition, _offset, id FROM {duckdb_pool.SCAN}"
            result = connection.execute(query, [table.metadata_location]).to_arrow_table()
        yield f"{slug}: DuckDB differs from PyIceberg", _difference(_positions(result), expected)
        if spark:
            name = f"{iceberg.CATALOG}.{tenant.namespace}.{slug}"
            result = spark.sql(f"SELECT _kafka_partition, _offset, id FROM {name}").toArrow()
            yield f"{slug}: Spark differs from PyIceberg", _difference(_positions(result), expected)


def _by_state(tenant: Tenant, lake: Lake) -> Iterator[tuple[str, list[Any]]]:
    """Check the states that a tenant's batches keep beside the tables."""
    for slug, rows in lake.rows.items():
        yield from states.compare(tenant, slug, rows)


def _positions(rows: pa.Table) -> Counter[tuple[int, int, str]]:
    columns = (rows.column(name).to_pylist() for name in ("_kafka_partition", "_offset", "id"))
    return Counter(zip(*columns, strict=True))


def _difference(result: Counter[Any], expected: Counter[Any]) -> list[Any]:
    return list(((result - expected) + (expected - result)).elements())


def by_file(lakes: Mapping[str, Lake]) -> Iterator[Finding]:
    """Check that every live file is in its table's folder, referenced once, present and complete."""
    owners: dict[str, list[str]] = defaultdict(list)
    for tenant, lake in lakes.items():
        astray, damaged = [], []
        for table in lake.tables.values():
            for task in table.scan().plan_files():
                path = task.file.file_path
                owners[path].append(tenant)
                if not path.startswith(f"{table.location()}/data/"):
                    astray.append(path)
                info = object_store.file_system().get_file_info(object_store.key(path))
                if info.type is not fs.FileType.File or info.size != task.file.file_size_in_bytes:
                    damaged.append(path)
        if astray:
            yield Finding("files outside of their table's folder", tenant, some(astray))
        if damaged:
            yield Finding("files that are gone or have another size", tenant, some(damaged))
    for path, tenants in owners.items():
        if len(tenants) > 1:
            yield Finding("a file that is live more than once", ", ".join(sorted(tenants)), path)


def orphans(sent: Iterable[Sent]) -> list[Finding]:
    """Files in the tables' folders that no snapshot and no metadata log references."""
    findings = []
    for owner in sent:
        leftovers = []
        for slug in SCHEMAS:
            location = registry.current_table(owner.tenant, slug).metadata_location
            table = iceberg.load_table((owner.tenant.namespace, slug), location)
            referenced = {location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
            for snapshot in table.metadata.snapshots:
                referenced.add(snapshot.manifest_list)
                for manifest in snapshot.manifests(table.io):
                    referenced.add(manifest.manifest_path)
                    referenced |= {
                        entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)
                    }
            folder = fs.FileSelector(object_store.key(table.location()), recursive=True)
            listing = object_store.file_system().get_file_info(folder)
            leftovers += [
                i.path for i in listing if i.type is fs.FileType.File and f"s3://{i.path}" not in referenced
            ]
        if leftovers:
            findings.append(Finding("orphans after upkeep", owner.tenant.slug, some(leftovers)))
    return findings


def deadlocks() -> int:
    """Number of deadlocks since Postgres' statistics began, which is again after a crash."""
    with postgres.transaction("pulse_pipeline") as connection:
        query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ((result,),) = connection.execute(query).fetchall()
    return int(result)


def content(tenant: Tenant) -> dict[str, list[dict[str, Any]]]:
    """Content of all rows by dataset and id: equal for any two runs on the same events."""
    return {
        slug: sorted(
            rows.select(["id", "timestamp", *SCHEMAS[slug]["properties"], "_extra"]).to_pylist(),
            key=lambda row: str(row["id"]),
        )
        for slug, rows in Lake.of(tenant).rows.items()
    }


def published(tenant: Tenant) -> Iterator[tuple[Position, tuple[bytes | None, str]]]:
    """Dead letters on the tenant's topic by the position of their event; repeated ones count once.

    The payload of a letter that was too large for the topic is the registry's.
    """
    for _, message in messages(tenant.dead_letter_topic):
        _, partition, offset = _text(message.key()).rsplit("/", 2)
        headers = dict(message.headers() or ())
        payload = message.value()
        if "pulse.withheld-bytes" in headers:
            payload = dead_letters.find_dead_letter(tenant, f"{partition}-{offset}").payload
        yield (int(partition), int(offset)), (payload, _text(headers["pulse.reason"]))


def _text(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def some(wrong: Iterable[Any]) -> str:
    examples = list(wrong)
    return f"{len(examples)}, such as {', '.join(map(str, examples[:SHOWN]))}"
