"""DuckDB for one query of a caller: the permitted tables are views, and everything else is locked."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa

from pulse_pipelines.query.duckdb_pool import EXTENSIONS, extension
from pulse_pipelines.sql import equality, manifests, pruning, utc, values
from pulse_resources.errors import UserError

LATEST = "QUALIFY row_number() OVER (PARTITION BY id ORDER BY _updated DESC) = 1 AND NOT _is_deleted"
"""Clause after a log of entities that leaves the newest version of each, if it is not a deletion."""
_SCAN = "iceberg_scan({location}, allow_moved_paths = false{snapshot})"


@dataclass(frozen=True)
class Store:
    """The object store's address."""

    address: str
    """Host and port."""
    secure: bool
    ca_file: str
    region: str


@dataclass(frozen=True)
class View:
    """A table in a query, at one snapshot."""

    name: str
    """A slug, `<slug>__<rollup>`, `<slug>__latest`, or `namespace.table` for a table of the tenant's own."""
    metadata_location: str
    snapshot_id: int | None
    """None: the metadata's current snapshot."""
    folder: str
    """The prefix of all files of the table: s3://bucket/…/"""
    empty: bool
    """Whether the table has no rows yet."""
    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(repr=False)
    manifest_list: str | None = None
    """That of the snapshot, in a table of the tenant's own, whose engines wrote it; None: not checked."""
    checked: Sequence[str] = ()
    """Marks of its manifests that a recent query has checked."""
    latest: bool = False
    """Whether it is the latest state of a log of entities: of each the newest version, if not deleted."""
    whole: bool = False
    """Whether no file may be left out for its partition."""
    bounds: str | None = None
    """The snapshot's list of manifests, by whose bounds of `timestamp_fields` DuckDB may leave out files."""
    timestamp_fields: Sequence[Sequence[int]] = ()
    """Ids of specs, and positions in them, of partition fields that are days or months of timestamps."""
    nan: bool = False
    """Whether columns may have NaN, which is in no bounds of a file."""
    exact_columns: Sequence[int] = ()
    """As of `equality.exact_columns`, in a table of the tenant's own."""
    scopes: Sequence[Sequence[int]] = ()
    """As of `equality.scopes`, in a table of the tenant's own."""


def instance() -> duckdb.DuckDBPyConnection:
    """Open an instance with its extensions loaded and no threads, which survives a fork."""
    database = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "allow_persistent_secrets": False,
            "max_temp_directory_size": "0B",
            "python_enable_replacements": False,
        },
    )
    for name in EXTENSIONS:
        database.load_extension(extension(name))
    utc.create_macros(database)
    return database


def lock(
    database: duckdb.DuckDBPyConnection,
    store: Store,
    views: Sequence[View],
    *,
    memory_bytes: int,
    threads: int,
    seconds: float,
) -> dict[str, list[str]]:
    """Create the views, and lock everything else.

    Returns the marks of the manifests of own tables that were checked now, by the tables' folders.

    Raises:
        UserError: a table of the tenant's own cannot be opened.
        duckdb.Error: another one cannot, or the object store does not answer.
    """
    for setting, value in (
        ("threads", threads),
        ("memory_limit", f"{memory_bytes}B"),
        ("temp_directory", ""),  # what does not fit into memory ends as that, not as a file refused
        ("TimeZone", "UTC"),
        ("http_timeout", max(1, int(seconds))),  # seconds; the parent gives up no later
        ("http_retries", 1),
        ("validate_external_file_cache", "NO_VALIDATION"),  # files of the lake never change
        ("arrow_lossless_conversion", True),
        ("allowed_directories", [view.folder for view in views]),
        ("enable_external_access", False),
    ):
        database.execute(f"SET GLOBAL {setting} = {_literal(value)}")
    if store.secure:
        database.execute("SET GLOBAL enable_server_cert_verification = true")
        database.execute(f"SET GLOBAL ca_cert_file = {_literal(store.ca_file)}")
    for number, view in enumerate(views):
        database.execute(secret(f"table_{number}", store, view))
    database.execute("SET GLOBAL disabled_filesystems = 'LocalFileSystem'")  # after all settings with paths
    database.execute("SET GLOBAL lock_configuration = true")
    checked: dict[str, list[str]] = {}
    for view in views:
        if "." not in view.name:
            create_view(database, view)
            continue
        try:
            if view.manifest_list is not None:
                checked[view.folder] = manifests.check(database, view.manifest_list, frozenset(view.checked))
                equality.check(
                    database, view.name, view.manifest_list, exact=view.exact_columns, scopes=view.scopes
                )
            create_view(database, view)
        except (duckdb.IOException, duckdb.OutOfMemoryException):  # their reasons are not only in the table
            raise
        except (ValueError, duckdb.Error) as error:
            reason = str(error).partition("\n")[0][:500]
            raise UserError(
                f"the table {view.name!r} cannot be read: {reason}",
                fix="Its files are what an engine of yours wrote: roll it back, or create the table again",
            ) from error
    return checked


def create_view(database: duckdb.DuckDBPyConnection, view: View) -> None:
    """Create the view by which a query reads a table. Raises duckdb.Error."""
    snapshot = "" if view.snapshot_id is None else f", snapshot_from_id = {view.snapshot_id}"
    scan = _SCAN.format(location=_literal(view.metadata_location), snapshot=snapshot)
    columns, only = ("* EXCLUDE (_is_deleted)", f" {LATEST}") if view.latest else ("*", "")
    whole = view.whole or (
        view.bounds is not None and pruning.begins_before_1970(database, view.bounds, view.timestamp_fields)
    )
    if view.nan:
        replaced, nested = pruning.without_bounds(database, scan)
        columns, whole = f"{columns}{replaced}", whole or nested
    # Conditions of a query are not passed on to a scan below an OFFSET.
    limit = " LIMIT 0" if view.empty else " OFFSET 0" if whole else ""
    namespace, _, table = view.name.rpartition(".")
    if namespace:
        database.execute(f'CREATE SCHEMA IF NOT EXISTS "{namespace}"')
    name = f'"{namespace or "main"}"."{table}"'
    database.execute(f"CREATE VIEW {name} AS SELECT {columns} FROM {scan}{only}{limit}")  # noqa: S608 - names of the gate


def secret(name: str, store: Store, view: View) -> str:
    """The statement that gives DuckDB the key of a table, scoped to its folder."""
    options = {
        "KEY_ID": view.access_key,
        "SECRET": view.secret_key,
        "SESSION_TOKEN": view.session_token,
        "ENDPOINT": store.address,
        "REGION": store.region,
        "USE_SSL": store.secure,
        "URL_STYLE": "path",
        "SCOPE": view.folder,
    }
    assignments = ", ".join(f"{option} {_literal(value)}" for option, value in options.items())
    return f"CREATE SECRET {name} (TYPE s3, {assignments})"


def _literal(value: Any) -> str:
    """A value as a SQL literal; settings and secrets take no parameters."""
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "'{}'".format(str(value).replace("'", "''"))


def column_names(database: duckdb.DuckDBPyConnection, text: str) -> list[str]:
    """Names of the columns of a query's result, without running it. Raises duckdb.Error."""
    return [str(name) for name, *_ in database.execute(f"DESCRIBE {text}").fetchall()]


def rows(
    database: duckdb.DuckDBPyConnection, text: str, batch_rows: int, names: Sequence[str] | None = None
) -> pa.RecordBatchReader:
    """Stream the result of a query in batches, in types that every reader knows. Raises duckdb.Error.

    Args:
        names: names of the columns, if not those that the query gives them.
    """
    reader, write = database.execute(text).to_arrow_reader(batch_rows), values.texts(database)
    types = [values.exact(pa.nulls(0, column.type), write).type for column in reader.schema]
    schema = pa.schema(list(zip(names or reader.schema.names, types, strict=True)))
    checked = [place for place, kind in enumerate(types) if values.has(kind, pa.types.is_interval)]
    if checked:
        of_all = ", ".join(["*", *(f"CAST(#{place + 1} AS VARCHAR)" for place in checked)])
        reader = database.sql(text).project(of_all).to_arrow_reader(batch_rows)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            columns = batch.columns[: len(types)]
            for place, expected in zip(checked, batch.columns[len(types) :], strict=True):
                _check_intervals(schema.field(place), write(columns[place]), expected)
            yield pa.record_batch([values.exact(column, write) for column in columns], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _check_intervals(field: pa.Field, written: Sequence[str | None], expected: pa.Array) -> None:
    """Raise UserError if intervals have become others: Arrow has their time in 64 bits of nanoseconds."""
    if written != expected.to_pylist():
        raise values.unfit(field.name, field.type, "the time of an interval is beyond 292 years")


def duplicates(names: Iterable[str]) -> list[str]:
    """Names that occur more than once, in their order."""
    unique: set[str] = set()
    return [name for name in names if name in unique or unique.add(name)]  # type: ignore[func-returns-value]
