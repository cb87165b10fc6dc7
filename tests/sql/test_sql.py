"""SQL over a tenant's tables: over HTTP and the command line; pinned, limited, recorded, one's own only."""

import io
import json
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.catalog import Guest
from support.docs import blocks, run_as
from support.engines import rest
from support.faults import AtPoint
from support.here import ingest_here as ingest
from support.http import Api, Caller, served
from support.ingest import Owner, event, make_owner
from support.lake import table
from support.sql import answer_text, processes
from typer.testing import CliRunner

from chaos.surroundings import TLS, superuser, with_settings
from chaos.waiting import PATIENCE_S, wait
from pulse_api import cli
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.query.formats import ARROW, CSV, PARQUET
from pulse_pipelines.registry import keys
from pulse_pipelines.sql import audit, pinned
from pulse_pipelines.sql.engine import View
from pulse_pipelines.sql.processes import Process
from pulse_resources import object_store, postgres
from pulse_resources.settings import Settings, load_settings
from pulse_resources.store_keys import vended, vending_accounts

ENDLESS = "SELECT sum(a.range * b.range) AS n FROM range(1000000) a, range(1000000) b"
ROWS = 40


@dataclass(frozen=True)
class Lake:
    owner: Owner
    other: Owner
    """Has a dataset of the same slug, with other rows."""
    first: int
    """Snapshot with half of the rows."""


@pytest.fixture(scope="module")
def lake(stack: Settings) -> Lake:
    owner, other = make_owner(), make_owner()
    owner.send(*(event(f"a-{n}", country="DE", count=n) for n in range(ROWS // 2)))
    other.send(event("of-the-other", country="XX", count=1))
    ingest(owner, other)
    first = table(owner).current_snapshot()
    assert first
    owner.send(*(event(f"b-{n}", country="FR", count=n) for n in range(ROWS // 2)))
    ingest(owner)
    return Lake(owner, other, first.snapshot_id)


@pytest.fixture
def caller(lake: Lake, new_caller: Callable[..., Caller]) -> Caller:
    return new_caller(owner=lake.owner)


def query(caller: Caller, sql: str, **more: Any) -> httpx.Response:
    return caller.http.post("/v1/sql", json={"sql": sql} | more)


def rows(caller: Caller, sql: str, **more: Any) -> list[dict[str, Any]]:
    answer = query(caller, sql, **more)
    assert answer.status_code == 200, answer.text
    content: list[dict[str, Any]] = answer.json()["rows"]
    return content


COUNTED = "SELECT country, count(*) AS n, sum(count) AS s FROM orders GROUP BY ALL ORDER BY 1"
EXPECTED = [{"country": "DE", "n": 20, "s": 190}, {"country": "FR", "n": 20, "s": 190}]


def test_rows_come_in_every_form(caller: Caller) -> None:
    answer = query(caller, COUNTED, query_id="forms")
    assert answer.json()["rows"] == EXPECTED
    assert answer.json()["query_id"] == answer.headers["pulse-query-id"] == "forms"
    assert list(answer.json()["snapshots"]) == ["orders"]
    assert [column["name"] for column in answer.json()["columns"]] == ["country", "n", "s"]

    def of(media_type: str) -> bytes:
        reply = caller.http.post("/v1/sql", json={"sql": COUNTED}, headers={"accept": media_type})
        assert reply.status_code == 200
        assert reply.headers["content-type"].partition(";")[0] == media_type
        return reply.content

    assert of(CSV) == b"country,n,s\r\nDE,20,190\r\nFR,20,190\r\n"
    assert pa.ipc.open_stream(of(ARROW)).read_all().to_pylist() == EXPECTED
    assert pq.read_table(io.BytesIO(of(PARQUET))).to_pylist() == EXPECTED
    assert (
        caller.http.post("/v1/sql", json={"sql": "SELECT 1"}, headers={"accept": "text/html"}).status_code
        == 406
    )


def test_all_rows_are_those_that_pyiceberg_finds(lake: Lake, caller: Caller) -> None:
    answer = caller.http.post("/v1/sql", json={"sql": "FROM orders"}, headers={"accept": ARROW})
    by_id = [("id", "ascending")]
    expected = table(lake.owner).scan().to_arrow().sort_by(by_id)
    assert pa.ipc.open_stream(answer.content).read_all().sort_by(by_id).to_pylist() == expected.to_pylist()


def test_a_query_travels_to_a_snapshot_and_to_a_moment(lake: Lake, caller: Caller) -> None:
    count = "SELECT count(*) AS n FROM orders"
    assert rows(caller, count) == [{"n": ROWS}]
    assert rows(caller, count, snapshots={"orders": lake.first}) == [{"n": ROWS // 2}]
    assert rows(caller, count, snapshots={"orders": str(lake.first)}) == [{"n": ROWS // 2}]
    for wrong in (str(2**63), "-1", "", "1.0", "٣", 2**63, -1, True, None):
        assert query(caller, count, snapshots={"orders": wrong}).status_code in (400, 422), wrong
    assert rows(caller, count, as_of="2020-01-01T00:00:00Z") == [{"n": 0}]
    assert rows(caller, count, as_of="2099-01-01T00:00:00Z") == [{"n": ROWS}]
    assert query(caller, count, snapshots={"orders": 1}).status_code == 404
    refused = query(caller, "SELECT 1", snapshots={"orders": lake.first})
    assert refused.status_code == 422
    assert "'orders'" in refused.json()["detail"]


def test_a_dataset_without_rows_has_none(new_caller: Callable[..., Caller]) -> None:
    fresh = new_caller()
    answer = query(fresh, "SELECT id, count FROM orders")
    assert (answer.json()["rows"], answer.json()["snapshots"]) == ([], {"orders": None})


def test_a_name_of_a_part_of_a_query_wins_over_a_dataset(caller: Caller) -> None:
    assert rows(caller, "WITH orders AS (SELECT 7 AS a) FROM orders") == [{"a": 7}]
    both = "WITH orders AS (SELECT id FROM orders LIMIT 3) SELECT count(*) AS n FROM orders"
    assert rows(caller, both) == [{"n": 3}]


def test_explain_tells_the_plan_and_reads_nothing(caller: Caller) -> None:
    (plan,) = rows(caller, "EXPLAIN SELECT count(*) FROM orders WHERE country = 'DE'")
    assert "ICEBERG_SCAN" in plan["explain_value"]


def test_tables_and_queries_of_another_tenant_are_absent(
    lake: Lake, caller: Caller, new_caller: Callable[..., Caller]
) -> None:
    other = new_caller(owner=lake.other)
    assert [row["id"] for row in rows(other, "SELECT id FROM orders")] == ["of-the-other"]
    assert "of-the-other" not in query(caller, "FROM orders").text
    missing = query(caller, "SELECT * FROM nowhere")
    assert (missing.status_code, missing.json()["type"]) == (404, "urn:pulse:problem:not-found")
    query(caller, "SELECT 1 AS mine", query_id="mine")
    assert "mine" not in [entry["query_id"] for entry in other.http.get("/v1/sql").json()["queries"]]
    assert other.http.delete("/v1/sql/mine").status_code == 404


def test_only_keys_that_may_read_may_ask(lake: Lake, new_caller: Callable[..., Caller]) -> None:
    for scope in (KeyScope.READ, KeyScope.LAKE_READ):
        assert query(new_caller([scope], lake.owner), "SELECT 1").status_code == 200
    collecting = new_caller([KeyScope.COLLECT], lake.owner)
    for answer in (
        query(collecting, "SELECT 1"),
        collecting.http.get("/v1/sql"),
        collecting.http.delete("/v1/sql/x"),
    ):
        assert answer.status_code == 403
    assert (
        httpx.post(
            str(collecting.http.base_url.join("/v1/sql")),
            json={"sql": "SELECT 1"},
            timeout=PATIENCE_S,
            verify=TLS,
        ).status_code
        == 401
    )


def test_every_query_is_recorded(lake: Lake, caller: Caller) -> None:
    query(caller, COUNTED, query_id="good")
    query(caller, "SELECT nope FROM orders", query_id="bad")
    query(caller, "FROM read_text('/etc/passwd')", query_id="refused")
    by_id = {entry["query_id"]: entry for entry in caller.http.get("/v1/sql").json()["queries"]}
    good, bad, refused = by_id["good"], by_id["bad"], by_id["refused"]
    assert (good["state"], good["rows"], good["sql"]) == ("done", 2, COUNTED)
    assert good["key_id"] == caller.key.stored.key_id
    assert good["bytes"] > 50
    assert good["seconds"] > 0
    assert good["snapshots"] == {"orders": str(table(lake.owner).current_snapshot().snapshot_id)}  # type: ignore[union-attr]
    assert (bad["state"], refused["state"]) == ("failed", "failed")
    assert "nope" in bad["error"]
    assert "read_text" in refused["error"]
    again = query(caller, "SELECT 1", query_id="good")
    assert (again.status_code, again.json()["type"]) == (409, "urn:pulse:problem:conflict")
    with postgres.tenant_transaction("pulse_api", lake.owner.tenant.tenant_id) as connection:
        assert connection.execute("DELETE FROM sql_queries").rowcount == 0, "what is young stays"
        assert connection.execute("UPDATE sql_queries SET asked_at = now() - interval '91 days'").rowcount
    query(caller, "SELECT 1", query_id="later")
    queries = caller.http.get("/v1/sql").json()["queries"]
    assert [entry["query_id"] for entry in queries] == ["later"]


def test_a_query_whose_process_was_killed_has_an_error(lake: Lake, caller: Caller) -> None:
    """Nobody records how it ended."""
    audit.begin(lake.owner.tenant, "killed", None, "SELECT 1")
    assert state_of(lake.owner, "killed") == "running"
    with postgres.tenant_transaction("pulse_api", lake.owner.tenant.tenant_id) as connection:
        ago = "UPDATE sql_queries SET asked_at = now() - interval '1 hour' WHERE query_id = 'killed'"
        connection.execute(ago)
    queries = caller.http.get("/v1/sql").json()["queries"]
    (killed,) = (entry for entry in queries if entry["query_id"] == "killed")
    assert (killed["state"], "has ended" in killed["error"]) == ("failed", True)
    assert not caller.http.get("/v1/sql?running=true").json()["queries"]


def test_a_wrong_query_is_refused_with_its_reason(caller: Caller) -> None:
    for sql, why in (
        ("DROP TABLE orders", "not a query that only reads"),
        ("SELECT range FROM range(1000000000000)", "100,000 rows"),
        ("SELECT list(range) AS l FROM range(1000000000)", "512 MiB of memory"),
        ("SELECT repeat('x', 1000000) AS x FROM range(100)", "33,554,432 bytes"),
        ("SELECT reservoir_quantile(range, 0.5, 2000000000) FROM range(100000)", "DuckDB fails at"),
    ):
        answer = query(caller, sql)
        assert (answer.status_code, why in answer.json()["detail"]) == (422, True), answer.text
        assert answer.json()["fix"]
        assert "Stack Trace" not in answer.text
        assert "0x" not in answer.text


def wait_until_running(caller: Caller, query_id: str) -> None:
    """Until a query runs."""
    while not any(
        q["query_id"] == query_id for q in caller.http.get("/v1/sql?running=true").json()["queries"]
    ):
        time.sleep(0.05)


def state_of(owner: Owner, query_id: str) -> str:
    return next(entry.state for entry in audit.queries(owner.tenant, 100) if entry.query_id == query_id)


def in_background(caller: Caller, api: Api, query_id: str) -> tuple[threading.Thread, list[httpx.Response]]:
    answers: list[httpx.Response] = []

    def ask() -> None:
        with closing(api.client(caller.key.text)) as own:
            answers.append(own.post("/v1/sql", json={"sql": ENDLESS, "query_id": query_id}))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    wait_until_running(caller, query_id)
    return thread, answers


def test_a_query_is_cancelled(lake: Lake, caller: Caller, api: Api) -> None:
    """By DELETE; by another process of the API, which only Postgres tells; by the end of its key."""
    thread, answers = in_background(caller, api, "by-delete")
    assert caller.http.delete("/v1/sql/by-delete").json()["state"] == "cancelled"
    thread.join(PATIENCE_S)
    assert (answers[0].status_code, "cancelled" in answers[0].json()["detail"]) == (409, True)
    thread, answers = in_background(caller, api, "elsewhere")
    audit.cancel(lake.owner.tenant, "elsewhere")
    thread.join(PATIENCE_S)
    assert answers[0].status_code == 409
    assert state_of(lake.owner, "elsewhere") == "cancelled"
    done = query(caller, "SELECT 1", query_id="done")
    assert done.status_code == 200
    assert caller.http.delete("/v1/sql/done").json()["state"] == "done"
    assert caller.http.delete("/v1/sql/never").status_code == 404


def test_an_id_that_a_running_query_has_is_refused_at_once(lake: Lake, caller: Caller, api: Api) -> None:
    """It need not wait for the tenant's turn, which that query has: it did, for 10 s, and was told 503."""
    thread, answers = in_background(caller, api, "twice")
    again = query(caller, "SELECT 1", query_id="twice")
    assert (again.status_code, again.json()["type"]) == (409, "urn:pulse:problem:conflict")
    assert state_of(lake.owner, "twice") == "running"
    assert caller.http.delete("/v1/sql/twice").json()["state"] == "cancelled"
    thread.join(PATIENCE_S)
    assert answers[0].status_code == 409
    assert [query(caller, "SELECT 1", query_id=name).status_code for name in (".", "..", ".a")] == [422] * 3


def test_the_watch_for_cancelled_queries_continues_after_an_error(
    lake: Lake, caller: Caller, api: Api, at: AtPoint
) -> None:
    """After any error: else no query would be cancelled again, by request or by the end of its key."""

    def failing() -> None:
        raise RuntimeError("of a kind that nobody expects")

    failed = at("sql.look", failing)
    thread, answers = in_background(caller, api, "after-an-error")
    wait(lambda: bool(failed), "the watch did not run")
    audit.cancel(lake.owner.tenant, "after-an-error")
    thread.join(PATIENCE_S)
    assert answers[0].status_code == 409


def test_a_key_that_ends_ends_its_queries(lake: Lake, new_caller: Callable[..., Caller], api: Api) -> None:
    doomed = new_caller(owner=lake.owner)
    thread, answers = in_background(doomed, api, "of-a-revoked-key")
    keys.revoke_key(lake.owner.tenant, doomed.key.stored.key_id)
    thread.join(PATIENCE_S)
    assert answers[0].status_code == 409
    assert query(doomed, "SELECT 1").status_code == 401


def test_a_caller_that_disconnects_ends_its_query(lake: Lake, caller: Caller, api: Api) -> None:
    with closing(api.begin(caller.key.text, "/v1/sql", {"sql": ENDLESS, "query_id": "left"})):
        wait_until_running(caller, "left")
    wait(lambda: state_of(lake.owner, "left") != "running", "the query continues")
    assert state_of(lake.owner, "left") == "cancelled"


def test_tenants_take_turns_and_time_is_limited(
    lake: Lake, new_caller: Callable[..., Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One's endless queries keep nobody else waiting, and those of it that wait are bounded.

    The time of an endless query does not end before two were refused; another query has as much as it needs.
    """
    queries, ask_process = dict[Process, object](), Process.ask

    def ask_in_time(
        process: Process, question: Mapping[str, Any], until: float, most: int
    ) -> tuple[dict[str, Any], bytes]:
        if queries.setdefault(process, question.get("sql")) != ENDLESS:
            until = time.monotonic() + PATIENCE_S
            if "limits" in question:
                question = {**question, "limits": question["limits"] | {"seconds": PATIENCE_S}}
        elif "sql" not in question:
            wait(lambda: len(answers) >= 2, "nobody is refused")
        return ask_process(process, question, until, most)

    monkeypatch.setattr(Process, "ask", ask_in_time)
    with (
        with_settings(SQL__SECONDS=1, SQL__READY=1, API__MAX_WAITING=2, API__WAIT_SECONDS=PATIENCE_S),
        served() as api,
    ):
        greedy = keys.issue_key(lake.owner.tenant, "greedy", [KeyScope.READ])
        modest = keys.issue_key(lake.other.tenant, "modest", [KeyScope.READ])
        answers: list[httpx.Response] = []

        def ask() -> None:
            with closing(api.client(greedy.text)) as client:
                answers.append(client.post("/v1/sql", json={"sql": ENDLESS}))

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(5)]
        for thread in threads:
            thread.start()
        with closing(api.client(modest.text)) as client:
            while any(thread.is_alive() for thread in threads):
                answer = client.post("/v1/sql", json={"sql": "SELECT count(*) AS n FROM orders"})
                assert answer.status_code == 200, answer.text
                time.sleep(0.3)
    refused = [answer for answer in answers if answer.status_code == 429]
    late = [answer for answer in answers if answer.status_code == 422]
    assert (len(refused), len(late)) == (2, 3)
    assert all("Retry-After" in answer.headers for answer in refused)
    assert all("longer than the 1 s" in answer.json()["detail"] for answer in late)


def test_sql_without_landlock_is_refused_unless_a_setting_permits_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulse_resources.process.landlock.version", lambda: 3)
    key = keys.issue_key(lake.owner.tenant, "anybody", [KeyScope.READ])
    count = {"sql": "SELECT count(*) AS n FROM orders"}
    with served() as api, closing(api.client(key.text)) as client:
        answer = client.post("/v1/sql", json=count)
        assert (answer.status_code, "WITHOUT_LANDLOCK" in answer.json()["fix"]) == (501, True)
    with (
        with_settings(SQL__WITHOUT_LANDLOCK="true"),
        served() as api,
        closing(api.client(key.text)) as client,
    ):
        assert client.post("/v1/sql", json=count).json()["rows"] == [{"n": ROWS}]


def views(owner: Owner, **other: Any) -> list[View]:
    (pinned_table,) = pinned.tables(owner.tenant, ["orders"], [], pinned.Travel())
    return [View(**vars(pinned_table.view) | other)]


def place() -> tuple[dict[str, object], int]:
    address = load_settings().object_store.endpoint.removeprefix("http://")
    store: dict[str, object] = {"address": address, "secure": False, "ca_file": "", "region": "us-east-1"}
    return store, int(address.rpartition(":")[2])


def foreign_files(lake: Lake) -> list[str]:
    bucket = load_settings().object_store.bucket
    raw = next(iter(object_store.listed(lake.other.tenant.raw_prefix(bucket, "orders")))).path
    data = next(task.file.file_path for task in table(lake.other).scan().plan_files())
    return [raw, data, table(lake.other).metadata_location, f"{table(lake.other).location()}/**"]


@pytest.mark.parametrize(
    "off",
    [pytest.param((), marks=pytest.mark.slow), ("gate",), ("gate", "locks")],
    ids=lambda off: " ".join(off) or "all layers",
)
def test_files_of_others_are_not_read(lake: Lake, off: tuple[str, ...]) -> None:
    """Without the gate DuckDB's locks hold; without those, the key: it opens the tenant's own tables."""
    store, port = place()
    with processes(off, port=port) as workers:
        for file in foreign_files(lake):
            # `glob` of a name without a star is that name, whether or not there is such a file.
            for reader in ("glob",) if "*" in file else ("read_blob", "read_text", "read_parquet"):
                output = answer_text(
                    workers, f"SELECT * FROM {reader}('{file}')", store=store, views=views(lake.owner)
                )
                assert "of-the-other" not in output
                assert '"rows":[{' not in output, output
        mine = next(task.file.file_path for task in table(lake.owner).scan().plan_files())
        if "locks" in off:
            output = answer_text(
                workers, f"SELECT id FROM read_parquet('{mine}')", store=store, views=views(lake.owner)
            )
            assert "a-1" in output or "b-1" in output, "the key opens what is the tenant's own"


@pytest.mark.parametrize("off", [pytest.param((), marks=pytest.mark.slow), ("gate",)])
def test_sql_does_not_reveal_the_key_of_the_object_store(lake: Lake, off: tuple[str, ...]) -> None:
    store, port = place()
    with processes(off, port=port) as workers:
        for sql in (
            "FROM duckdb_secrets()",
            "FROM duckdb_secrets(redact = false)",
            "FROM duckdb_settings()",
            "SELECT current_setting('s3_secret_access_key')",
            "FROM which_secret('s3://pulse/x', 's3')",
            "SELECT sql FROM duckdb_views()",
            "EXPLAIN FROM orders",
            "FROM duckdb_logs()",
        ):
            view = views(lake.owner)
            output = answer_text(workers, sql, store=store, views=view)
            assert view[0].secret_key not in output
            assert load_settings().object_store.secret_key.get_secret_value() not in output


@pytest.mark.usefixtures("shared_processes")
def test_the_command_line_asks_the_same(lake: Lake, tmp_path: Path) -> None:
    def pulse(*arguments: str) -> str:
        done = CliRunner().invoke(cli.app, ["sql", lake.owner.tenant.slug, *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert json.loads(pulse(COUNTED, "--json"))["rows"] == EXPECTED
    assert pulse(COUNTED, "--csv").splitlines() == ["country,n,s", "DE,20,190", "FR,20,190"]
    assert "190" in pulse(COUNTED)
    assert pulse("SELECT 1 AS a WHERE false").endswith(f"of {lake.owner.tenant.slug}: no rows\n")
    assert "\x1b" not in pulse('SELECT 1 AS "\x1b[31mred"')
    pulse(COUNTED, "-o", str(tmp_path / "x.parquet"), "--snapshot", f"orders={lake.first}")
    assert pq.read_table(tmp_path / "x.parquet").to_pylist() == EXPECTED[:1]
    assert "GROUP BY ALL" in pulse("--recent")
    assert "GROUP BY ALL" in json.loads(pulse("--recent", "--json"))[0]["sql"]
    wrong = CliRunner().invoke(cli.app, ["sql", lake.owner.tenant.slug, "DROP TABLE orders"])
    assert wrong.exit_code == 2


def test_a_store_that_vends_no_key_is_named(lake: Lake, caller: Caller) -> None:
    vended.forget()
    with with_settings(OBJECT_STORE__VENDING_SECRET_KEY="wrong"):
        vended.forget()
        answer = query(caller, "SELECT count(*) AS n FROM orders")
    vended.forget()
    assert answer.status_code in (500, 503)
    assert "vends credentials" in answer.json()["detail"]
    assert query(caller, "SELECT count(*) AS n FROM orders").status_code == 200


def test_a_query_replaces_a_revoked_storage_key(lake: Lake, caller: Caller) -> None:
    """Queries failed for as long as the key was cached, ten minutes."""
    text = "SELECT count(*) AS n FROM orders"
    before = query(caller, text)
    assert before.status_code == 200, before.text
    (key,) = [
        credentials
        for cached, credentials in vended._cache.items()
        if cached[2] == lake.owner.tenant.namespace
    ]
    assert vending_accounts.revoke(load_settings(), key) == 204
    after = query(caller, text)
    assert after.status_code == 200, after.text
    assert after.json()["rows"] == before.json()["rows"]


def test_each_tenant_sees_its_own_records_alone(lake: Lake, caller: Caller) -> None:
    query(caller, "SELECT 1 AS seen")
    with superuser() as connection:
        assert connection.execute("SELECT count(*) FROM sql_queries").fetchone() > (0,)
    with postgres.transaction("pulse_api") as connection:
        assert connection.execute("SELECT count(*) FROM sql_queries").fetchone() == (0,)


@pytest.mark.skipif(not shutil.which("curl"), reason="the page's commands need curl")
@pytest.mark.usefixtures("shared_processes")
def test_the_page_is_true(api: Api, catalog: Api, new_caller: Callable[..., Caller], tmp_path: Path) -> None:
    """docs/sql.md: every command of it, in order, against the real server."""
    own = new_caller()
    engine = rest(catalog, Guest(own.owner, own.key))
    engine.create_namespace("reports")
    goals = pa.table({"country": ["DE"], "target": pa.array([100], pa.int64())})
    engine.create_table("reports.goals", goals.schema).append(goals)
    own.owner.send(event("o-1", country="DE", amount=12.5), event("o-2", country="FR", amount=7.5))
    ingest(own.owner)
    out = run_as(own.owner.tenant.slug, "sql.md", tmp_path, PULSE=api.url, KEY=own.key.text)
    assert '{"country":"DE","orders":1,"amount":12.5},{"country":"FR","orders":1,"amount":7.5}' in out
    assert '"rows":[{"id":"o-1","target":100}]' in out
    assert out.count('"rows":[{"then":0}]') == 1
    assert out.count('"rows":[{"then":2}]') == 1
    assert pq.read_table(tmp_path / "orders.parquet").num_rows == 2
    assert len((tmp_path / "orders.csv").read_text().splitlines()) == 3
    (program,) = blocks("sql.md", "python")
    variables: dict[str, Any] = {"PULSE": api.url, "KEY": own.key.text}
    exec(program, variables)  # noqa: S102 - the page's own
    assert sorted(variables["amounts"]["amount"].to_pylist()) == [7.5, 12.5]
