"""Ways to harm a dataset behind Pulse's back, each of which is undone when its block ends."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyspark.sql.connect.session import SparkSession

from chaos.surroundings import superuser
from pulse_pipelines import registry
from pulse_pipelines.ingest import land
from pulse_pipelines.ingest.stages import StagedTable
from pulse_pipelines.tables import arrow_columns, parquet_files
from pulse_resources import iceberg, object_store, postgres
from pulse_resources.settings import Settings, load_settings
from pulse_resources.spark import leave_at_once
from support.ingest import Owner

DAY = date(2026, 11, 19)  # of `support.ingest.event`


def spark() -> SparkSession:
    """The Spark session of this process; others of it share it, so nobody may stop it."""
    entered = SparkSession.builder.remote(load_settings().spark.remote).getOrCreate()
    leave_at_once(entered)  # the stack is gone by the time that this process ends
    return entered


def location(owner: Owner, slug: str = "orders") -> str:
    return registry.current_table(owner.tenant, slug).metadata_location


def table(owner: Owner, slug: str = "orders") -> Table:
    """The current table; a commit through it only writes files (see `pulse_resources.iceberg`)."""
    return iceberg.load_table((owner.tenant.namespace, slug), location(owner, slug))


@contextmanager
def pointing_at(owner: Owner, elsewhere: str, slug: str = "orders") -> Iterator[None]:
    """The table is at another metadata file, as a writer around Pulse would leave it."""
    name, before = (owner.tenant.namespace, slug), location(owner, slug)
    with postgres.transaction("pulse_catalog") as connection:
        assert iceberg.swap(connection, name, before, elsewhere)
    try:
        yield
    finally:
        with postgres.transaction("pulse_catalog") as connection:
            assert iceberg.swap(connection, name, elsewhere, before)


def changed(owner: Owner, change: Callable[[Table], object], slug: str = "orders") -> str:
    """Metadata of the table after a change made with pyiceberg; nothing points at it yet."""
    current = table(owner, slug)
    before = current.metadata_location
    change(current)
    assert current.metadata_location != before
    return current.metadata_location


def row(owner: Owner, **values: Any) -> pa.Table:
    """The first row of `orders` with other values, as its files hold rows."""
    dataset = registry.find_dataset(owner.tenant, "orders")
    fields = [field.with_nullable(True) for field in arrow_columns.arrow_schema(dataset.table_schema)]
    return pa.Table.from_pylist([owner.rows()[0] | values], schema=pa.schema(fields))


def with_file(
    owner: Owner,
    rows: pa.Table,
    *,
    folder: str | None = None,
    batch: str = "forged",
    base: str | None = None,
) -> str:
    """Metadata of `orders` with one more data file, written around the pipeline, in any folder.

    Args:
        base: where the table was when the writer looked; where it is, if not given.
    """
    dataset = registry.find_dataset(owner.tenant, "orders")
    where = folder or table(owner).location()
    file, content = parquet_files.encode(dataset, DAY, f"{where}/data/{parquet_files.token()}.parquet", rows)
    object_store.put(file.path, content)
    before = base or location(owner)
    staged = StagedTable(
        tenant_id=owner.tenant.tenant_id,
        dataset_id=dataset.dataset_id,
        slug="orders",
        table=(owner.tenant.namespace, "orders"),
        old_location=before,
        new_location=before,
        snapshot_id=None,
        files=(file,),
        days=(),
    )
    return land.stage(staged, batch).new_location


@contextmanager
def harmed(owner: Owner, table: str, statement: str) -> Iterator[None]:
    """A statement was run as superuser on the tenant's rows of `table`.

    Args:
        owner, table: whose rows of which table are put back at the end.
        statement: SQL, with {mine} where it names the tenant's rows.
    """
    mine = f"tenant_id = '{owner.tenant.tenant_id}'"
    if table.startswith("iceberg_catalog."):
        mine = f"table_namespace = '{owner.tenant.namespace}'"
    with superuser() as connection:
        query = f"SELECT to_jsonb(t)::text FROM {table} t WHERE {mine}"
        before = connection.execute(query).fetchall()
        try:
            done = connection.execute(statement.format(mine=mine))
            assert done.rowcount, "nothing was changed: the test would show nothing"
            yield
        finally:
            connection.execute(f"DELETE FROM {table} WHERE {mine}")
            back = f"INSERT INTO {table} SELECT * FROM jsonb_populate_record(null::{table}, %s)"
            connection.cursor().executemany(back, before)


@contextmanager
def without_object(path: str, content: bytes | None = None) -> Iterator[None]:
    """An object is gone, or has other content."""
    store, key = object_store.file_system(), object_store.key(path)
    with store.open_input_file(key) as source:
        before = source.read()
    store.delete_file(key)
    try:
        if content is not None:
            put(key, content)
        yield
    finally:
        put(key, before)


def put(key: str, content: bytes) -> None:
    with object_store.file_system().open_output_stream(key, compression=None) as sink:
        sink.write(content)


@contextmanager
def damaged_schema(owner: Owner) -> Iterator[None]:
    """The tenant's published schemas are no JSON any more."""
    mine = [owner.tenant.tenant_id]
    with superuser() as connection:
        connection.execute("SET session_replication_role = replica")  # they are immutable
        query = "SELECT document, schema_uri FROM pdm_schemas WHERE tenant_id = %s"
        before = connection.execute(query, mine).fetchall()
        try:
            harm = "UPDATE pdm_schemas SET document = document || '{' WHERE tenant_id = %s"
            connection.execute(harm, mine)
            yield
        finally:
            back = "UPDATE pdm_schemas SET document = %s WHERE schema_uri = %s"
            connection.cursor().executemany(back, before)


def outside_catalog(settings: Settings) -> SqlCatalog:
    """The catalog as any PyIceberg program opens it, with the operators' role and nothing of Pulse."""
    url = settings.postgres.url("pulse_catalog", "psycopg")
    return SqlCatalog(
        iceberg.CATALOG,
        **{
            "uri": f"{url}&options=-csearch_path%3Diceberg_catalog",
            "init_catalog_tables": "false",
            "s3.endpoint": settings.object_store.endpoint,
            "s3.region": settings.object_store.region,
            "s3.access-key-id": settings.object_store.access_key,
            "s3.secret-access-key": settings.object_store.secret_key.get_secret_value(),
        },
    )


def with_value(rows: pa.Table, name: str, value: object) -> pa.Table:
    """The rows, the first of which has another value."""
    first = rows.slice(0, 1).to_pylist()[0] | {name: value}
    return pa.concat_tables([pa.Table.from_pylist([first], rows.schema), rows.slice(1)])
