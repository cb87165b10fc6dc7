"""Attacks by SQL: each is stopped by the whole sandbox, and still is with any one of its layers off."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest
from support.sql import LIMITS, answer_text, ask, less, listening, processes, rows

from chaos.waiting import PATIENCE_S, wait
from pulse_pipelines.sql.processes import CancelledError, Processes, TimeUpError
from pulse_resources.errors import UserError
from pulse_resources.process import landlock
from pulse_resources.process.niceness import BACKGROUND

MARKER = "the-secret-of-another"
WITH_GATE: tuple[tuple[str, ...], ...] = ((), ("locks",), ("landlock",))
WITHOUT_GATE: tuple[tuple[str, ...], ...] = (("gate",), ("gate", "locks"))
"""What is switched off. Without the gate and DuckDB's locks, Landlock alone has to hold."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        landlock.version() < landlock.CONNECTIONS_SINCE,
        reason="the kernel has no Landlock that knows connections",
    ),
]


@dataclass
class Outside:
    """What attacks are after: files, an address, the environment."""

    folder: Path
    port: int
    connections: list[socket.socket]

    def files(self) -> set[str]:
        return {path.name for path in self.folder.rglob("*")}


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    folder = tmp_path_factory.mktemp("outside")
    folder.chmod(0o777)
    (folder / "secret.csv").write_text(f"a\n{MARKER}\n")
    (folder / "secret.json").write_text(f'{{"a": "{MARKER}"}}')
    (folder / "load.sql").write_text(f"CREATE TABLE t AS SELECT '{MARKER}' AS a")
    (folder / "schema.sql").write_text("")
    path = str(folder / "secret.duckdb")
    with duckdb.connect(path) as database:
        database.execute(f"CREATE TABLE t AS SELECT '{MARKER}' AS a")
        database.execute(f"COPY t TO '{folder}/secret.parquet'")
    body = f"a\n{MARKER}\n"
    reply = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    with listening(reply) as (port, connections):
        os.environ["PULSE_TEST_SECRET"] = MARKER
        yield Outside(folder, port, connections)
        del os.environ["PULSE_TEST_SECRET"]


def names(off: tuple[str, ...]) -> str:
    return "without " + " ".join(off) if off else "all layers"


@pytest.fixture(scope="module", params=WITH_GATE, ids=names)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Processes]:
    with processes(request.param) as workers:
        yield workers


@pytest.fixture(scope="module", params=WITHOUT_GATE, ids=names)
def gateless(request: pytest.FixtureRequest) -> Iterator[Processes]:
    with processes(request.param) as workers:
        yield workers


ATTACKS = [
    # Files
    "SELECT * FROM read_csv('{folder}/secret.csv')",
    "SELECT * FROM read_text('{folder}/secret.csv')",
    "SELECT * FROM read_blob('{folder}/secret.*')",
    "SELECT * FROM read_json('{folder}/secret.json')",
    "SELECT * FROM read_parquet('{folder}/secret.parquet')",
    "SELECT * FROM parquet_metadata('{folder}/secret.parquet')",
    "SELECT * FROM sniff_csv('{folder}/secret.csv')",
    "SELECT * FROM '{folder}/secret.csv'",
    'SELECT * FROM "{folder}/secret.parquet"',
    "SELECT * FROM glob('{folder}/*')",
    "SELECT content FROM read_text('/proc/self/environ')",
    "SELECT content FROM read_text('/proc/*/environ')",
    "SELECT content FROM read_text('/proc/self/maps')",
    "SELECT * FROM read_csv('/etc/passwd', columns = {{'line': 'VARCHAR'}}, delim = chr(1))",
    "SELECT * FROM read_duckdb('{folder}/secret.duckdb')",
    "SELECT * FROM iceberg_scan('{folder}')",
    "SELECT * FROM iceberg_metadata('{folder}')",
    "SELECT * FROM read_avro('{folder}/secret.csv')",
    # The same, dressed up
    "WITH q AS (FROM read_text('{folder}/secret.csv')) SELECT * FROM q",
    "SELECT (SELECT content FROM read_text('{folder}/secret.csv'))",
    "SELECT 1 WHERE EXISTS (FROM (SELECT * FROM (FROM read_text('{folder}/secret.csv')))) UNION ALL SELECT 2",
    "FROM query('SELECT * FROM read_text(''{folder}/secret.csv'')')",
    "FROM query_table('{folder}/secret.csv')",
    "SELECT json_serialize_plan('SELECT * FROM read_text(''{folder}/secret.csv'')')",
    "FROM json_execute_serialized_sql(json_serialize_sql('FROM read_text(''{folder}/secret.csv'')'))",
    "EXPLAIN ANALYZE SELECT * FROM read_text('{folder}/secret.csv')",
    "SUMMARIZE FROM read_csv('{folder}/secret.csv')",
    "DESCRIBE FROM '{folder}/secret.csv'",
    "PIVOT (FROM read_csv('{folder}/secret.csv')) ON a USING count(*)",
    "SELECT 1; SELECT * FROM read_text('{folder}/secret.csv')",
    # Writes
    "COPY (SELECT 1) TO '{folder}/written.csv'",
    "EXPORT DATABASE '{folder}/written'",
    "ATTACH '{folder}/written.duckdb'",
    "CALL enable_logging(storage = 'file', storage_path = '{folder}/written')",
    "PRAGMA enable_profiling = 'json'; PRAGMA profiling_output = '{folder}/written.json'; SELECT 1",
    "SET temp_directory = '{folder}/written'; SELECT 1",
    "SET secret_directory = '{folder}/written'; CREATE PERSISTENT SECRET (TYPE http, BEARER_TOKEN 'x')",
    "CREATE PERSISTENT SECRET (TYPE http, BEARER_TOKEN 'x')",
    # Other databases and code
    "ATTACH '{folder}/secret.duckdb' AS other; FROM other.t",
    "IMPORT DATABASE '{folder}'",
    "PRAGMA import_database('{folder}')",
    "INSTALL httpfs FROM 'http://127.0.0.1:{port}'",
    "INSTALL spatial FROM community",
    "LOAD '{folder}/secret.duckdb_extension'",
    "CREATE MACRO range(a) AS TABLE FROM read_text('{folder}/secret.csv'); FROM range(1)",
    "CREATE FUNCTION upper(a) AS getenv('PULSE_TEST_SECRET'); SELECT upper('a')",
    "SELECT getenv('PULSE_TEST_SECRET')",
    # Addresses
    "FROM read_csv('http://127.0.0.1:{port}/x.csv')",
    "FROM 'http://127.0.0.1:{port}/x.csv'",
    "FROM read_text('http://127.0.0.1:{port}/latest/meta-data')",
    "FROM read_parquet('s3://other/x.parquet')",
    "CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b', ENDPOINT '127.0.0.1:{port}', USE_SSL false);"
    " FROM read_text('s3://bucket/x')",
    "ATTACH '' AS i (TYPE ICEBERG, ENDPOINT 'http://127.0.0.1:{port}', AUTHORIZATION_TYPE 'none')",
    "COPY (SELECT 1) TO 's3://bucket/x' (FORMAT parquet)",
    "SET http_proxy = '127.0.0.1:{port}'; FROM read_text('http://127.0.0.1:9/x')",
    # Its own process
    "SET lock_configuration = false; RESET enable_external_access; FROM read_text('{folder}/secret.csv')",
    "RESET enable_external_access; FROM read_text('{folder}/secret.csv')",
    "RESET disabled_filesystems; FROM read_text('{folder}/secret.csv')",
]


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.sample(40)
def test_an_attack_is_stopped(sandbox: Processes, outside: Outside, attack: str) -> None:
    stopped(sandbox, outside, attack)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_that_passed_the_gate_is_stopped(
    gateless: Processes, outside: Outside, attack: str
) -> None:
    stopped(gateless, outside, attack)


def stopped(sandbox: Processes, outside: Outside, attack: str) -> None:
    before = outside.files()
    sql = attack.format(folder=outside.folder, port=outside.port)
    output = answer_text(sandbox, sql)
    assert MARKER not in output.replace(sql, "")
    assert "root:" not in output
    assert outside.files() == before
    assert not outside.connections


def test_the_attacks_work_without_the_sandbox(outside: Outside) -> None:
    """Else the tests above would show nothing."""
    with processes(("gate", "locks", "landlock", "limits")) as workers:
        assert MARKER in answer_text(workers, f"SELECT * FROM read_csv('{outside.folder}/secret.csv')")
        assert MARKER in answer_text(workers, f"FROM '{outside.folder}/secret.parquet'")
        assert MARKER in answer_text(
            workers, f"ATTACH '{outside.folder}/secret.duckdb' AS other; FROM other.t"
        )
        assert MARKER in answer_text(workers, f"FROM read_text('http://127.0.0.1:{outside.port}/x.csv')")
        answer_text(workers, f"COPY (SELECT 1) TO '{outside.folder}/written.csv'")
        assert "written.csv" in outside.files()
    (outside.folder / "written.csv").unlink()
    assert outside.connections
    outside.connections.clear()


BOMBS = {
    "rows": "SELECT range FROM range(1000000000000)",
    "one value": "SELECT repeat('x', 100000000)",
    "bytes": "SELECT repeat('x', 10000) FROM range(900)",
    "memory": "SELECT list(range) FROM range(1000000000)",
    "lists of lists": "SELECT list_transform(range(100000), lambda x: range(100000))",
    "a join": "SELECT count(DISTINCT a.range * b.range) FROM range(1000000) a, range(1000000) b",
    "a hash": "SELECT range % 999999999 AS k, count(*) FROM range(3000000000) GROUP BY k ORDER BY 2 LIMIT 1",
    "strings": "SELECT string_agg(repeat('x', 1000), '') FROM range(10000000)",
}


@pytest.fixture(scope="module", params=[(), ("gate",), ("limits",)], ids=names)
def brief(request: pytest.FixtureRequest) -> Iterator[Processes]:
    """Processes for queries of a second."""
    with processes(request.param, less(seconds=1.0)) as workers:
        answer_text(workers, "SELECT 1")  # else the time of the first query would be that of their start
        yield workers


@pytest.mark.long
@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.sample(10)
def test_a_query_beyond_its_limits_ends_with_an_error(brief: Processes, bomb: str) -> None:
    with pytest.raises((UserError, TimeUpError)) as ended:
        ask(brief, BOMBS[bomb], limits=less(seconds=1.0))
    if isinstance(ended.value, UserError):
        assert "more" in str(ended.value) or "fails" in str(ended.value)


def test_without_the_memory_limit_of_duckdb_that_of_the_kernel_ends_a_query() -> None:
    with processes(("locks",)) as workers, pytest.raises(UserError, match=r"more|memory|ended"):
        ask(workers, "SELECT repeat('x', 100000000) FROM range(100)", limits=less(memory_bytes=2**40))


@pytest.fixture(scope="module")
def whole() -> Iterator[Processes]:
    """All layers; what a test leaves must not matter to the next query."""
    with processes() as workers:
        yield workers


def test_recursion_without_an_end_is_ended_in_time(whole: Processes) -> None:
    endless = "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r"
    with pytest.raises(TimeUpError):
        ask(whole, endless, limits=less(seconds=1.0))


@pytest.mark.long
def test_a_neighbour_does_not_notice(whole: Processes) -> None:
    """One process takes all the memory that it may, one computes without an end; others answer as ever."""
    heavy = [BOMBS["memory"], BOMBS["a join"]]
    threads = [
        threading.Thread(
            target=answer_text, args=(whole, sql), kwargs={"limits": less(seconds=4.0)}, daemon=True
        )
        for sql in heavy
    ]
    threading.excepthook = lambda _: None  # TimeUpError, of the join
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert rows(whole, "SELECT sum(range) AS s FROM range(1000)") == [{"s": 499_500}]
    threading.excepthook = threading.__excepthook__


def test_a_cancelled_query_ends_at_once(whole: Processes) -> None:
    with whole.take() as process:
        process.ask({"sql": BOMBS["a join"]}, time.monotonic() + PATIENCE_S, 2**16)
        job = {
            "store": {},
            "views": [],
            "limits": vars(LIMITS),
            "media_type": "application/json",
            "about": {},
        }
        job["store"] = {"address": "", "secure": False, "ca_file": "", "region": ""}
        threading.Timer(0.3, process.cancel).start()
        with pytest.raises(CancelledError):
            process.ask(job, time.monotonic() + PATIENCE_S, 2**16)
        wait(lambda: not process.alive, "the process continues")


def test_queries_do_not_compute_before_batches(whole: Processes) -> None:
    """They had the priority of the server, which is above all."""
    with whole.take():
        assert whole._template
        assert os.getpriority(os.PRIO_PROCESS, whole._template.pid) == BACKGROUND
        assert os.getsid(whole._template.pid) == whole._template.pid  # sessions share the processors


def test_a_template_that_has_ended_is_begun_again(whole: Processes) -> None:
    assert rows(whole, "SELECT 1 AS a") == [{"a": 1}]
    assert whole._template
    whole._template.kill()
    whole._template.wait()
    assert rows(whole, "SELECT 2 AS a") == [{"a": 2}]


def test_results_keep_their_types(whole: Processes) -> None:
    (row,) = rows(
        whole,
        "SELECT sum(range) AS whole, 170141183460469231731687303715884105727 AS huge, 1.50 AS exact,"
        " TIMESTAMPTZ '2026-11-19 10:00:00Z' AS at, DATE '2026-11-19' AS day, 'a'::BLOB AS bytes,"
        " {'a': [1, NULL]} AS nested, MAP {'k': 1} AS map, 'nan'::DOUBLE AS nan, NULL AS nothing,"
        " '2d9a5c2e-0000-4000-8000-000000000000'::UUID AS id, INTERVAL 90 MINUTE AS spell FROM range(4)",
    )
    assert row == {
        "whole": 6,
        "huge": 2**127 - 1,
        "exact": 1.5,
        "at": "2026-11-19T10:00:00Z",
        "day": "2026-11-19",
        "bytes": "YQ==",
        "nested": {"a": [1, None]},
        "map": [["k", 1]],
        "nan": None,
        "nothing": None,
        "id": "2d9a5c2e-0000-4000-8000-000000000000",
        "spell": row["spell"],
    }


def test_two_columns_of_one_name_are_refused(whole: Processes) -> None:
    with pytest.raises(UserError, match="two columns"):
        ask(whole, "SELECT 1 AS a, 2 AS a")
