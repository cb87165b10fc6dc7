"""An error of a query that reads own tables names them: what their files hold can be its cause."""

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pulse_pipelines.query.formats import JSON
from pulse_pipelines.sql import child, engine
from pulse_pipelines.sql.engine import View
from pulse_pipelines.sql.gate import Query
from pulse_pipelines.sql.pinned import PinnedTable
from pulse_pipelines.sql.run import as_damage, with_table_names, with_table_of
from pulse_resources.errors import FileGone, NotFound, PulseError, Transient, UserError

STORE: dict[str, Any] = {"address": "", "secure": False, "ca_file": "", "region": ""}
LIMITS = {"memory_bytes": 1, "threads": 1, "seconds": 1}


def pinned(*names: str) -> list[PinnedTable]:
    return [PinnedTable(name, 1, View(name, "", None, "", False, "", "", "")) for name in names]


@pytest.mark.parametrize("fix", [None, "Write it another way.", "Write it another way"])
def test_own_tables_are_named(fix: str | None) -> None:
    error = with_table_names(NotFound("the process has ended", fix=fix), pinned("orders", "own.a", "own.b"))
    assert isinstance(error, NotFound)
    assert error.message == "the process has ended"
    assert error.fix
    assert error.fix.removeprefix("Write it another way. ").startswith("The query reads own.a, own.b: ")


def test_an_error_of_a_query_over_datasets_is_unchanged() -> None:
    error = UserError("the process has ended", fix="Read fewer columns")
    assert with_table_names(error, pinned("orders")) is error


def test_an_error_about_an_unknown_name_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "lock", lambda *_, **__: {})
    job = {"limits": LIMITS, "store": STORE, "views": [], "media_type": "", "about": {}}
    query = Query("SELECT nosuch FROM range(1)", explain=False, tables=frozenset(), maybe=frozenset())
    with duckdb.connect() as database, pytest.raises(UserError, match='"nosuch" not found') as raised:
        child.run(database, query, job)
    assert child.KINDS["wrong"] is type(raised.value)
    assert with_table_names(raised.value, pinned("own.a")) is raised.value


VALUES = "(VALUES (1.0::double, 'a'), ('inf', 'b')) of_table (number, word)"
STORED = "map{{1: {{name: 'word', type: '{}', default_value: NULL}}}}"


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        (f"SUMMARIZE SELECT * FROM {VALUES}", "STDDEV_SAMP is out of range", "SUMMARIZE .* isfinite"),
        (f"SELECT word::int FROM {VALUES}", "Could not convert string 'a' to INT32", "TRY_CAST"),
        (f"SELECT strptime(word, '%Y') FROM {VALUES}", "Could not parse string", None),
        (f"SELECT number, number FROM {VALUES}", "two columns", "a name of its own"),
        ("FROM range(9)", "more than the 8 rows", "Aggregate"),
    ],
)
def test_an_error_about_a_value_is_not_blamed_on_a_file(
    text: str, message: str, fix: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = raised_by(text, monkeypatch)
    assert re.search(message, error.message)
    assert error.fix is fix is None or re.search(str(fix), str(error.fix))
    assert with_table_names(error, pinned("own.a")) is error


def test_a_type_error_of_a_file_is_blamed_on_its_own_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = pa.field("word", pa.string(), metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.table([["a"]], schema=pa.schema([field])), tmp_path / "a.parquet")
    text = f"FROM read_parquet('{tmp_path}/a.parquet', schema = {STORED.format('INTEGER')})"
    error = with_table_names(raised_by(text, monkeypatch), pinned("own.a"))
    assert "The query reads own.a" in str(error.fix)


def raised_by(text: str, monkeypatch: pytest.MonkeyPatch) -> UserError:
    """The error of a query."""
    monkeypatch.setattr(engine, "lock", lambda *_, **__: {})
    limits = LIMITS | {"rows": 8, "bytes": 1_000}
    job = {"limits": limits, "store": STORE, "views": [], "media_type": JSON, "about": {}}
    query = Query(text, explain=False, tables=frozenset(), maybe=frozenset())
    with duckdb.connect() as database, pytest.raises(UserError) as raised:
        child.run(database, query, job)
    return raised.value


def test_a_table_without_rows_that_cannot_be_opened_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise duckdb.InvalidInputException("Unrecognized primitive type: timestamptz_ns")

    monkeypatch.setattr(engine, "create_view", refuse)
    store, (table,) = engine.Store(**STORE), pinned("own.a")
    with engine.instance() as database, pytest.raises(UserError, match="cannot be read: Unrecognized"):
        engine.lock(database, store, [table.view], memory_bytes=2**28, threads=1, seconds=1)


def test_a_file_that_an_engine_removed_is_the_tenants_matter() -> None:
    tables = [
        replace(t, view=replace(t.view, folder=f"s3://pulse/{t.name}/")) for t in pinned("orders", "own.a")
    ]
    missing = with_table_of(FileGone("GET 'http://store/pulse/own.a/x' (404)"), tables)
    assert isinstance(missing, FileGone), "the query is repeated"
    error = as_damage(missing)
    assert isinstance(error, UserError)
    assert "'own.a' cannot be read" in error.message
    of_dataset = with_table_of(FileGone("GET 'http://store/pulse/orders/x' (404)"), tables)
    assert as_damage(of_dataset) is of_dataset


@pytest.mark.parametrize(("name", "kind"), [("own.a", UserError), ("orders", Transient)])
def test_a_file_that_is_too_short_is_the_tenants_matter(
    name: str, kind: type[PulseError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engine said how long the file is; of a dataset's file the object store is asked again."""

    def lock(*_: object, **__: object) -> None:
        raise duckdb.IOException("HTTP Error: Content-Length from server mismatches requested range, ...")

    monkeypatch.setattr(engine, "lock", lock)
    job = {"limits": LIMITS, "store": STORE, "views": [asdict(pinned(name)[0].view)]}
    query = Query("", explain=False, tables=frozenset(), maybe=frozenset())
    with duckdb.connect() as database, pytest.raises(kind) as raised:
        child.run(database, query, job)
    assert type(raised.value) is kind
