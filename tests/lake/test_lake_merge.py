"""Small files of a tenant's own tables are merged: equal rows for every engine; engines win."""

import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, StringType
from support.catalog import Guest
from support.engines import duck, spark
from support.faults import AtPoint, often
from support.forged import Forger, put
from support.forked import forked
from support.http import Api
from support.maintenance import done, objects
from support.rest_catalog import Lake

from chaos.surroundings import with_settings
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import catalog as names, metadata
from pulse_pipelines.maintenance import merge_own
from pulse_pipelines.maintenance.own_tables import Keeper, UpkeepReport
from pulse_resources.iceberg import table_metadata

ASKS = {"pulse.upkeep": "true"}
PEOPLE = pa.schema(
    [pa.field("id", pa.int32()), pa.field("land", pa.string()), pa.field("tags", pa.list_(pa.string()))]
)


def people(*numbers: int, land: str = "de") -> pa.Table:
    rows = [{"id": number, "land": land, "tags": [land, None, str(number)]} for number in numbers]
    return pa.Table.from_pylist(rows, PEOPLE)


def make(own_engine: RestCatalog, rows: int = 6, schema: pa.Schema = PEOPLE, **properties: str) -> Table:
    """A table of as many files as rows."""
    name = f"own.t{uuid.uuid4().hex[:8]}"
    table = own_engine.create_table(name, schema, properties=ASKS | properties)
    with table.transaction() as transaction:
        for number in range(rows):
            transaction.append(people(number))
    return table


def loaded(own_engine: RestCatalog, table: Table) -> Table:
    return own_engine.load_table(table.name()[-2:])


def rows(own_engine: RestCatalog, table: Table, snapshot: int | None = None) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = (
        loaded(own_engine, table).scan(snapshot_id=snapshot).to_arrow().to_pylist()
    )
    return sorted(content, key=str)


def files(own_engine: RestCatalog, table: Table) -> list[DataFile]:
    return [task.file for task in loaded(own_engine, table).scan().plan_files()]


def keep(tenant: Tenant) -> UpkeepReport:
    metadata.forget()
    return Keeper(tenant).keep()


def test_merges_keep_rows_and_columns_of_an_evolving_table(
    catalog: Api, own_engine: RestCatalog, writer: Guest
) -> None:
    """By the job: columns were renamed, widened, added and dropped; for PyIceberg and DuckDB."""
    table = make(own_engine, rows=0)
    with table.update_spec() as spec:
        spec.add_identity("land")
    with table.transaction() as transaction:
        for number in range(6):
            transaction.append(people(number, land="de"))
            transaction.append(people(10 + number, land="fr"))
        transaction.append(people(20, land="it"))
    old = table.current_snapshot()
    assert old
    with table.update_schema() as change:
        change.rename_column("land", "country")
        change.update_column("id", LongType())
        change.delete_column("tags")
        change.add_column("nick", StringType())
    later = pa.Table.from_pylist(
        [{"id": 2**40, "country": "de", "nick": "n"}],
        pa.schema([("id", pa.int64()), ("country", pa.string()), ("nick", pa.string())]),
    )
    with loaded(own_engine, table).transaction() as transaction:
        for _ in range(5):
            transaction.append(later)
    before, past = rows(own_engine, table), rows(own_engine, table, old.snapshot_id)
    schema, count = loaded(own_engine, table).schema(), len(files(own_engine, table))
    assert count == 18
    (upkeep,) = done(writer.owner, Task.TENANT_TABLES)
    assert (upkeep.after["merged"], upkeep.after["merged_into"], upkeep.detail) == (17, 3, None)
    now = loaded(own_engine, table)
    snapshot = now.current_snapshot()
    assert snapshot
    assert snapshot.summary
    assert snapshot.summary.operation.value == "replace"
    assert (snapshot.summary["total-records"], snapshot.summary["total-data-files"]) == ("18", "4")
    assert rows(own_engine, table) == before
    assert rows(own_engine, table, old.snapshot_id) == past
    assert now.schema() == schema
    assert sorted(file.partition[0] for file in files(own_engine, table)) == ["de", "de", "fr", "it"]
    assert rows_where(now, "country = 'fr'") == [10, 11, 12, 13, 14, 15]
    assert rows_where(now, "id > 100") == [2**40] * 5
    assert rows_where(now, "id = 3") == [3]
    with duck(catalog, writer) as connection:
        read = f"SELECT id, country, nick FROM {writer.tenant.slug}.own.{table.name()[-1]}"
        after = connection.execute(read).to_arrow_table().to_pylist()
    assert sorted(after, key=str) == before
    now.delete("id = 3")
    assert len(rows(own_engine, table)) == 17
    assert keep(writer.tenant).numbers["merged"] == 0, "there is nothing left to merge"


def rows_where(table: Table, condition: str) -> list[int]:
    ids: list[int] = table.scan(row_filter=condition).to_arrow()["id"].to_pylist()
    return sorted(ids)


@pytest.mark.slow
def test_spark_reads_its_own_rows_after_a_merge(catalog: Api, own_engine: RestCatalog, writer: Guest) -> None:
    """Types that Parquet can have in more than one way, nested ones, nulls; the options of the table."""
    session, lake = spark(catalog, writer)
    name = f"{lake}.own.t{uuid.uuid4().hex[:8]}"
    session.sql(
        f"CREATE TABLE {name} (id BIGINT NOT NULL, price DECIMAL(9, 2), large DECIMAL(30, 4), at TIMESTAMP,"
        " local TIMESTAMP_NTZ, day DATE, raw BINARY, f FLOAT, d DOUBLE, ok BOOLEAN,"
        " who STRUCT<mail: STRING, more: ARRAY<STRUCT<n: INT>>>, m MAP<STRING, DECIMAL(5, 1)>) USING iceberg"
        " PARTITIONED BY (days(at)) TBLPROPERTIES ('pulse.upkeep' = 'true',"
        " 'write.parquet.compression-codec' = 'gzip', 'write.distribution-mode' = 'none')"
    ).collect()
    for number in range(5):
        session.sql(
            f"INSERT INTO {name} SELECT {number}, {number}.25, {number}.0001, "
            f" TIMESTAMP '2026-01-01 10:00:00', TIMESTAMP_NTZ '2026-01-01 0{number}:00:00',"
            f" DATE '1900-01-0{number + 1}', X'0{number}ff',"
            f" FLOAT('NaN'), {number}e300, NULL, named_struct('mail', 'm{number}', 'more',"
            f" array(named_struct('n', {number}), NULL)), map('k', {number}.5)"
        ).collect()
    before = session.sql(f"SELECT * FROM {name} ORDER BY id").toArrow().to_pylist()
    table = own_engine.load_table(f"own.{name.rpartition('.')[2]}")
    upkeep = keep(writer.tenant)
    assert (upkeep.numbers["merged"], upkeep.numbers["merged_into"]) == (5, 1), upkeep.skipped
    session.sql(f"REFRESH TABLE {name}").collect()
    assert repr(session.sql(f"SELECT * FROM {name} ORDER BY id").toArrow().to_pylist()) == repr(before)
    answer = session.sql(f"SELECT id FROM {name} WHERE price = 3.25 AND day < DATE '1901-01-01'").toArrow()
    assert answer["id"].to_pylist() == [3]
    (merged,) = files(own_engine, table)
    with loaded(own_engine, table).io.new_input(merged.file_path).open() as content:
        footer = pq.read_metadata(content)
    assert footer.row_group(0).column(0).compression == "GZIP"
    assert before[3]["price"] == Decimal("3.25")


@pytest.mark.parametrize("change", ["append", "delete", "overwrite"])
@pytest.mark.sample(1)
def test_an_engine_that_writes_meanwhile_wins(
    own_engine: RestCatalog, writer: Guest, at: AtPoint, change: str
) -> None:
    """A commit between staging and swap: what it added is beside the merge; what it removed ends it."""
    table = make(own_engine)

    def write() -> None:
        other = loaded(own_engine, table)
        if change == "append":
            other.append(people(100))
        elif change == "delete":
            other.delete("id = 2")
        else:
            other.overwrite(people(200, 201))

    at("own.merge.staged", write)
    upkeep = keep(writer.tenant)
    expected = {"append": {*range(6), 100}, "delete": {0, 1, 3, 4, 5}, "overwrite": {200, 201}}[change]
    assert {row["id"] for row in rows(own_engine, table)} == expected
    assert len(rows(own_engine, table)) == len(expected)
    assert upkeep.numbers["merged"] == (6 if change == "append" else 0)
    assert any("replaced meanwhile" in why for why in upkeep.skipped) is (change != "append")


@pytest.mark.parametrize("point", often(["staged", "after_commit"], "staged"))
def test_a_merge_that_is_killed_is_done_or_not(own_engine: RestCatalog, writer: Guest, point: str) -> None:
    table = make(own_engine)
    before = rows(own_engine, table)
    forked(keep, writer.tenant, PULSE_FAIL_POINT=f"own.merge.{point}").killed()
    assert rows(own_engine, table) == before
    assert len(files(own_engine, table)) == (6 if point == "staged" else 1)
    assert keep(writer.tenant).numbers["merged"] == (6 if point == "staged" else 0)
    assert rows(own_engine, table) == before
    loaded(own_engine, table).append(people(9))
    with with_settings(UPKEEP__OWN_ORPHAN_HOURS=0, UPKEEP__HISTORY_HOURS=0, UPKEEP__HISTORY_MINIMUM=1):
        assert keep(writer.tenant).skipped == []
    data = {path for path in objects(f"{table.location()}/data") if path.endswith(".parquet")}
    assert data == {file.file_path for file in files(own_engine, table)}, "what it left behind is removed"


def test_a_table_that_cannot_be_merged_is_skipped_with_a_reason(
    own_engine: RestCatalog, writer: Guest, own_lake: Lake
) -> None:
    tables = {
        "delete files": make(own_engine),
        "sort order": make(own_engine),
        "format version 1": make(own_engine, **{"format-version": "1"}),
        "without field ids": make(own_engine, 0),
        "not Parquet": make(own_engine, 0),
        "another size": make(own_engine, 0),
        "file twice": make(own_engine, 0),
        "earlier partition spec": make(own_engine),
    }
    forger = Forger(loaded(own_engine, tables["delete files"]))
    live = loaded(own_engine, tables["delete files"]).current_snapshot()
    assert live
    listing = forger.manifest_list(
        *live.manifests(tables["delete files"].io),
        forger.manifest(f"{tables['delete files'].location()}/data/x.parquet", deletes=True),
    )
    assert own_lake.commit(tables["delete files"].name()[-1], *forger.updates(listing)).status_code == 200
    with tables["sort order"].update_sort_order() as sort:
        sort.asc("id", IdentityTransform())
    with tables["earlier partition spec"].update_spec() as change:
        change.add_field("id", IdentityTransform(), "id")
    for why, fields in (
        ("without field ids", {}),
        ("not Parquet", {"file_format": FileFormat.ORC}),
        (
            "another size",
            {"file_size_in_bytes": 7},
        ),
        ("file twice", {}),
    ):
        table = tables[why]
        paths = [f"{table.location()}/data/{number}.parquet" for number in range(5)]
        added = [entry(table, path, **fields) for path in paths]
        register(table, added + (added[:1] if why == "file twice" else []))
    before = {why: loaded(own_engine, table).metadata.current_snapshot_id for why, table in tables.items()}
    upkeep = keep(writer.tenant)
    for why, table in tables.items():
        assert loaded(own_engine, table).metadata.current_snapshot_id == before[why], why
        reasons = [reason for reason in upkeep.skipped if table.name()[-1] in reason]
        assert len(reasons) == 1, (why, upkeep.skipped)
        assert why in reasons[0]
    assert upkeep.numbers["merged"] == 0


def test_removed_delete_files_do_not_hinder_a_merge(
    own_engine: RestCatalog, writer: Guest, own_lake: Lake
) -> None:
    """An engine that compacts delete files leaves a manifest that names them as removed."""
    table = loaded(own_engine, make(own_engine))
    forger, live, before = Forger(table), table.current_snapshot(), rows(own_engine, table)
    assert live
    removed = forger.manifest(f"{table.location()}/data/x.parquet", deletes=True, removed=True)
    listing = forger.manifest_list(*live.manifests(table.io), removed)
    assert own_lake.commit(table.name()[-1], *forger.updates(listing)).status_code == 200
    upkeep = keep(writer.tenant)
    assert (upkeep.numbers["merged"], upkeep.skipped) == (6, [])
    assert rows(own_engine, table) == before
    assert len(files(own_engine, table)) == 1


def entry(table: Table, path: str, **other: Any) -> DataFile:
    """The manifest entry of a file without field ids, written here."""
    sink = pa.BufferOutputStream()
    pq.write_table(people(1), sink)
    put(path, sink.getvalue().to_pybytes())
    described = {"file_format": FileFormat.PARQUET, "file_size_in_bytes": sink.getvalue().size} | other
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        partition=Record(),
        record_count=1,
        spec_id=0,
        **described,
    )


def register(table: Table, added: list[DataFile]) -> None:
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for file in added:
            append.append_data_file(file)


def test_hostile_tables_end_their_own_merge_only(own_engine: RestCatalog, writer: Guest) -> None:
    """Bytes that are no Parquet behind true sizes, properties that name code, or sizes of nothing."""
    garbage = make(own_engine)
    for file in files(own_engine, garbage):
        with loaded(own_engine, garbage).io.new_input(file.file_path).open() as content:
            (size,) = (len(content.read()),)
        put(file.file_path, b"PAR1" + b"\xff" * (size - 8) + b"PAR1")
    hostile = []
    for properties in (
        {"write.parquet.page-row-limit": "0", "write.parquet.row-group-limit": "1"},
        {"write.metadata.metrics.default": "nonsense"},
        {"write.target-file-size-bytes": "many"},
        {"write.parquet.compression-codec": "lzo", "write.parquet.compression-level": "99"},
        {"write.py-location-provider.impl": "antigravity.fly", "commit.retry.num-retries": "x"},
    ):
        hostile.append(make(own_engine))
        with loaded(own_engine, hostile[-1]).transaction() as transaction:
            transaction.set_properties(properties)
    sound = make(own_engine)
    before = rows(own_engine, sound)
    upkeep = keep(writer.tenant)
    reasons = "\n".join(upkeep.skipped)
    assert rows(own_engine, sound) == before
    assert [len(files(own_engine, target)) for target in (sound, *hostile)] == [1, 1, 6, 6, 1, 1], reasons
    assert f"{garbage.name()[-1]}: 6 files not merged" in reasons
    assert all(target.name()[-1] in reasons for target in hostile[1:3])
    assert rows(own_engine, hostile[0]) == before
    assert upkeep.numbers["merged"] == 4 * 6


def test_a_table_can_have_upkeep_without_merges(own_engine: RestCatalog, writer: Guest) -> None:
    table = make(own_engine, **{"pulse.upkeep.merge": "false"})
    assert keep(writer.tenant).numbers["merged"] == 0
    assert len(files(own_engine, table)) == 6


def test_texts_whose_bound_pyiceberg_cannot_write_are_merged(own_engine: RestCatalog, writer: Guest) -> None:
    """After U+D7FF, the last of 16 characters, it would write half of a surrogate pair."""
    metrics, land = "write.metadata.metrics.default", "z" * 15 + "\ud7ffz"
    table = make(own_engine, 5, **{metrics: "counts"})
    table.append(people(5, land=land))
    with table.transaction() as transaction:
        transaction.set_properties({metrics: "truncate(16)"})
    assert keep(writer.tenant).numbers["merged"] == 6
    (merged,) = files(own_engine, table)
    assert merged.upper_bounds[2] == ("z" * 15 + "\ue000").encode()
    assert [row["land"] for row in rows(own_engine, table)].count(land) == 1


def of(*sizes: int) -> list[DataFile]:
    return [
        DataFile.from_args(file_path=f"s3://b/{number:04}", file_size_in_bytes=size)
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "target", "expected"),
    [
        ([1] * 4, 100, []),
        ([1] * 5, 100, [[1] * 5]),
        ([10] * 25, 100, [[10] * 10, [10] * 10, [10] * 5]),
        ([1] * 5 + [90], 1_000, [[1] * 5]),
        ([1] * 4 + [90], 1_000, []),
        ([1, 1, 2, 4, 8, 16, 32], 1_000, [[1, 1, 2, 4, 8, 16, 32]]),
        ([3, 10, 10, 10, 10], 1_000, [[3, 10, 10, 10, 10]]),
        ([60] * 6, 100, []),
    ],
)
def test_small_files_are_merged_as_they_grow(
    sizes: list[int], target: int, expected: list[list[int]]
) -> None:
    sizes_merged = [
        [file.file_size_in_bytes for file in batch] for batch in merge_own.batches(of(*sizes), target)
    ]
    assert sizes_merged == expected


def test_a_run_is_bounded(own_engine: RestCatalog, writer: Guest) -> None:
    """What does not fit is left to the next run."""
    table = make(own_engine, 12)
    (own,) = names.tenant_tables(writer.tenant)
    budget = merge_own.Budget(files=7)
    assert merge_own.merge(writer.tenant, own, budget).files == 7
    assert merge_own.merge(writer.tenant, own, budget).files == 0
    assert merge_own.merge(writer.tenant, own, merge_own.Budget(bytes=100)).files == 0
    assert len(rows(own_engine, table)) == 12


def test_nothing_else_of_the_metadata_changes(own_engine: RestCatalog, writer: Guest, own_lake: Lake) -> None:
    """Properties, statistics and the retention of branches stay as an engine wrote them."""
    table = loaded(own_engine, make(own_engine))
    snapshot = table.current_snapshot()
    assert snapshot
    ref = {"action": "set-snapshot-ref", "type": "branch", "snapshot-id": snapshot.snapshot_id}
    retention = {"min-snapshots-to-keep": 3, "max-snapshot-age-ms": 10**12}
    answer = own_lake.commit(
        table.name()[-1], ref | {"ref-name": "main"} | retention, ref | {"ref-name": "other"}
    )
    assert answer.status_code == 200, answer.text
    before = table_metadata.read(loaded(own_engine, table).metadata_location)
    assert keep(writer.tenant).numbers["merged"] == 6
    after = table_metadata.read(loaded(own_engine, table).metadata_location)
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == {
        *("snapshots", "snapshot-log", "metadata-log", "refs"),
        *("current-snapshot-id", "last-sequence-number", "last-updated-ms"),
    }
    assert after["snapshots"][:-1] == before["snapshots"]
    new = {"snapshot-id": after["current-snapshot-id"]}
    assert after["refs"] == before["refs"] | {"main": before["refs"]["main"] | new}
