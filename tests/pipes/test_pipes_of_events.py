"""Pipes of events: rows that are only appended become events, each once, whatever is read again or killed."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.faults import often
from support.forked import forked
from support.here import ingest_here as ingest
from support.ingest import Owner, next_attempt, plan_batch, run_batch, start_attempt
from support.lake import spark
from support.pipes import bring, settle

from chaos.sources import SOURCE, Folder, database, stored_source
from chaos.surroundings import superuser, with_settings
from pulse_pipelines import pipes, registry
from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.domain.syncs import SyncState
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import syncs
from pulse_pipelines.erasure import run as erasure
from pulse_pipelines.ingest import sync_deletions
from pulse_pipelines.maintenance.retention import expire_claims
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.pipes import rows
from pulse_pipelines.pipes.run import run
from pulse_pipelines.query.preview import preview
from pulse_resources.errors import NotFound, UserError

PIPE: dict[str, Any] = {
    "pipe": "sales",
    "source": SOURCE,
    "table": "sales",
    "dataset": "sales",
    "timestamp": "sold_at",
}
BY_CURSOR = PIPE | {"mode": "incremental", "cursor": "number", "overlap": "3"}
FILES = {"pipe": "sales", "source": SOURCE, "dataset": "sales", "timestamp": "sold_at", "key": ["number"]}
TABLE = "CREATE TABLE sales (number int PRIMARY KEY, sold_at timestamptz, amount numeric(12, 2), shop text)"
SELL = "INSERT INTO sales SELECT n, '2026-03-01Z'::timestamptz + n * interval '1 h', n / 4.0, 'a' FROM "


@pytest.fixture
def source(owner: Owner) -> Iterator[Any]:
    with database(owner.tenant) as connection:
        connection.execute(TABLE)
        yield connection


@pytest.fixture
def folder(owner: Owner) -> Iterator[Folder]:
    folder = Folder()
    with stored_source(owner.tenant, folder.address):
        yield folder


def sell(source: Any, first: int, last: int) -> None:
    source.execute(f"{SELL}generate_series({first}, {last}) n")


def ids(owner: Owner) -> list[str]:
    """Ids of all rows, however often each is there."""
    return sorted((row["id"] for row in owner.rows("sales")), key=lambda number: (len(number), number))


def numbers(first: int, last: int) -> list[str]:
    return [str(n) for n in range(first, last + 1)]


def counts(owner: Owner) -> tuple[str, int, int, int]:
    """State, new, unchanged and refused of the last run; nothing of events is changed or deleted."""
    sync = syncs.list_syncs(owner.tenant, "sales")[0]
    assert (sync.is_full, sync.changed, sync.deleted) == (False, 0, 0)
    return sync.state, sync.created, sync.unchanged, sync.refused


def lines(*rows: Mapping[str, Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_rows_that_are_appended_become_events_each_once(owner: Owner, source: Any) -> None:
    sell(source, 1, 50)
    pipe = pipes.create(owner.tenant, definition(BY_CURSOR))
    assert (pipe.position, pipe.document["timestamp"]) == (None, "sold_at")
    dataset = registry.find_dataset(owner.tenant, "sales")
    assert (dataset.kind, sorted(dataset.schema["properties"])) == (
        DatasetKind.EVENTS,
        ["amount", "number", "shop"],
    )
    assert bring(owner, "sales").rows == 50
    assert counts(owner) == (SyncState.DONE, 50, 0, 0)
    (seventh,) = (row for row in owner.rows("sales") if row["id"] == "7")
    assert seventh["timestamp"] == datetime(2026, 3, 1, 7, tzinfo=UTC)
    assert (seventh["number"], seventh["amount"], seventh["shop"]) == (7, "1.75", "a")
    assert (seventh["_extra"], "sold_at" in seventh) == (None, False)
    assert pipes.find(owner.tenant, "sales").position == "50"
    assert bring(owner, "sales").rows == 4
    assert counts(owner) == (SyncState.DONE, 0, 4, 0)
    sell(source, 51, 60)
    assert bring(owner, "sales").rows == 14
    assert counts(owner) == (SyncState.DONE, 10, 4, 0)
    assert ids(owner) == numbers(1, 60)
    day = pipes.last_day(owner.tenant)[owner.tenant.tenant_id, "sales"]
    assert day == pipes.LastDay(created=60, unchanged=8)
    assert pipes.find(owner.tenant, "sales").lag_seconds is not None
    assert preview(owner.tenant, "sales", 1_000).num_rows == 60
    assert reconcile_tenant(owner.tenant).balanced


def test_events_stay_unchanged_when_the_source_deletes_or_changes_rows(owner: Owner, source: Any) -> None:
    sell(source, 1, 20)
    pipes.create(owner.tenant, definition(PIPE))
    bring(owner, "sales")
    source.execute("DELETE FROM sales WHERE number > 5; UPDATE sales SET shop = 'b' WHERE number = 1")
    sent = bring(owner, "sales")
    assert (sent.rows, sent.is_full, counts(owner)) == (5, True, (SyncState.DONE, 0, 5, 0))
    source.execute("DELETE FROM sales")
    bring(owner, "sales")
    assert counts(owner) == (SyncState.DONE, 0, 0, 0)
    assert sync_deletions.syncs_awaiting_approval() == [
        sync for sync in sync_deletions.syncs_awaiting_approval() if sync.tenant != owner.tenant.slug
    ]
    assert ids(owner) == numbers(1, 20)
    assert {row["shop"] for row in owner.rows("sales")} == {"a"}
    pipes.reset(owner.tenant, "sales")
    sell(source, 20, 21)
    bring(owner, "sales")
    assert (counts(owner), ids(owner)) == ((SyncState.DONE, 1, 1, 0), numbers(1, 21))


@pytest.mark.slow
def test_late_rows_come_within_the_overlap_and_by_a_reset(owner: Owner, source: Any) -> None:
    sell(source, 1, 10)
    source.execute("DELETE FROM sales WHERE number IN (2, 8)")
    pipes.create(owner.tenant, definition(BY_CURSOR))
    bring(owner, "sales")
    sell(source, 8, 8)
    sell(source, 2, 2)
    bring(owner, "sales")
    assert ids(owner) == ["1", *numbers(3, 10)], "the other one is before the overlap"
    pipes.reset(owner.tenant, "sales")
    assert bring(owner, "sales").is_full
    assert (counts(owner), ids(owner)) == ((SyncState.DONE, 1, 9, 0), numbers(1, 10))


def test_a_row_without_a_valid_time_is_a_dead_letter_with_a_reason(owner: Owner, source: Any) -> None:
    sell(source, 1, 2)
    source.execute(
        "INSERT INTO sales VALUES (3, NULL), (4, 'infinity'), (5, '-infinity'), (6, '0044-03-15 12:00Z BC'),"
        " (7, '12000-01-01Z')"
    )
    pipes.create(owner.tenant, definition(PIPE))
    bring(owner, "sales")
    assert (counts(owner), ids(owner)) == ((SyncState.DONE, 2, 0, 5), ["1", "2"])
    letters = {json.loads(letter["payload"])["event_id"]: letter for letter in owner.dead_letters()}
    assert sorted(letters) == numbers(3, 7)
    assert {(letter["dataset"], letter["reason"], letter["pointer"]) for letter in letters.values()} == {
        ("sales", "invalid_timestamp", "/timestamp")
    }
    assert "missing" in letters["3"]["detail"]
    assert json.loads(letters["4"]["payload"])["timestamp"] == "infinity"
    assert reconcile_tenant(owner.tenant).balanced


@pytest.mark.slow
def test_an_infinite_cursor_does_not_end_the_pipe(owner: Owner, source: Any) -> None:
    """The time of a row is the usual cursor, and nothing would be beyond that of one that is infinite."""
    sell(source, 1, 3)
    source.execute("INSERT INTO sales VALUES (4, 'infinity'), (5, '-infinity')")
    incremental = PIPE | {"mode": "incremental", "cursor": "sold_at", "overlap": "1 minute"}
    pipes.create(owner.tenant, definition(incremental))
    bring(owner, "sales")
    assert (counts(owner), ids(owner)) == ((SyncState.DONE, 3, 0, 2), numbers(1, 3))
    assert pipes.find(owner.tenant, "sales").position == "2026-03-01 03:00:00+00"
    sell(source, 6, 7)
    bring(owner, "sales")
    assert (counts(owner), ids(owner)) == ((SyncState.DONE, 2, 1, 2), ["1", "2", "3", "6", "7"])


@pytest.mark.parametrize(
    ("kind", "value", "moment"),
    [
        ("timestamptz", "2026-03-29 02:30:00.123456+02", datetime(2026, 3, 29, 0, 30, 0, 123456, UTC)),
        ("timestamp", "2026-03-29 02:30:00.5", datetime(2026, 3, 29, 2, 30, 0, 500_000, UTC)),
        ("date", "2026-03-29", datetime(2026, 3, 29, tzinfo=UTC)),
        ("moments", "2026-03-29 02:30:00+02", datetime(2026, 3, 29, 0, 30, tzinfo=UTC)),
    ],
)
@pytest.mark.sample(1)
def test_a_time_without_a_zone_is_read_as_utc(
    owner: Owner, source: Any, kind: str, value: str, moment: datetime
) -> None:
    source.execute("CREATE DOMAIN moments AS timestamptz; SET timezone = 'Asia/Tokyo'")
    source.execute(f"CREATE TABLE odd (timestamp {kind}, n int, PRIMARY KEY (n, timestamp))")
    source.execute("INSERT INTO odd VALUES (%s, 1)", [value])
    if kind != "moments":
        source.execute("INSERT INTO odd VALUES ('infinity', 2)")
    odd = PIPE | {"table": "odd", "timestamp": "timestamp"}
    pipes.create(owner.tenant, definition(odd))
    bring(owner, "sales")
    (row,) = owner.rows("sales")
    assert (row["timestamp"], row["n"], row["_extra"]) == (moment, 1, None)
    assert len(owner.dead_letters()) == (kind != "moments")


@pytest.mark.slow
@pytest.mark.parametrize("point", ["pipe.begun", "pipe.loaded", "pipe.sent"])
def test_a_run_that_is_killed_is_made_good_by_the_next(owner: Owner, source: Any, point: str) -> None:
    sell(source, 1, 20)
    pipes.create(owner.tenant, definition(BY_CURSOR))
    bring(owner, "sales")
    sell(source, 21, 30)
    forked(run_alone, owner.tenant, PULSE_FAIL_POINT=point).killed()
    settle(owner)
    settled = pipes.find(owner.tenant, "sales").position
    assert settled == ("30" if point == "pipe.sent" else "20")
    sell(source, 31, 40)
    bring(owner, "sales")
    assert ids(owner) == numbers(1, 40)
    assert pipes.find(owner.tenant, "sales").position == "40"
    assert reconcile_tenant(owner.tenant).balanced


def run_alone(tenant: Tenant) -> None:
    """A run in a process of its own."""
    run(spark(), tenant, "sales", 2)


@pytest.mark.parametrize(
    "point",
    often(
        [
            "settle.before_claim",
            "claims.after_add",
            "sync.after_note",
            "settle.before_commit",
            "settle.after_commit",
        ],
        "settle.before_commit",
    ),
)
def test_the_position_settles_with_the_rows(owner: Owner, source: Any, point: str) -> None:
    sell(source, 1, 20)
    pipes.create(owner.tenant, definition(BY_CURSOR))
    run(spark(), owner.tenant, "sales", 2)
    batch = plan_batch([owner])
    start_attempt(batch, PULSE_FAIL_POINT=point).killed()
    landed = point == "settle.after_commit"
    assert len(ids(owner)) == (20 if landed else 0)
    assert pipes.find(owner.tenant, "sales").position == ("20" if landed else None)
    run_batch(batch, next_attempt(batch))
    assert pipes.find(owner.tenant, "sales").position == "20"
    assert counts(owner) == (SyncState.DONE, 20, 0, 0)
    sell(source, 21, 22)
    bring(owner, "sales")
    assert (counts(owner), ids(owner)) == ((SyncState.DONE, 2, 4, 0), numbers(1, 22))


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.sample(1)
def test_claims_of_events_from_a_pipe_never_expire(owner: Owner, source: Any, deleted: bool) -> None:
    """Else all rows that are read again would be there twice, also by a pipe that follows another one."""
    sell(source, 1, 10)
    pipes.create(owner.tenant, definition(PIPE))
    bring(owner, "sales")
    owner.send(order("a"))
    ingest(owner)
    with superuser() as connection:
        old = "UPDATE processed_event_ids SET claimed_on = current_date - 90 WHERE tenant_id = %s"
        connection.execute(old, [owner.tenant.tenant_id])
    if deleted:
        pipes.delete(owner.tenant, "sales")
    assert expire_claims(owner.tenant, 30) == 1, "that of an event which no pipe brought"
    if deleted:
        pipes.create(owner.tenant, definition(PIPE))
    bring(owner, "sales", full=True)
    assert (counts(owner), ids(owner)) == ((SyncState.DONE, 0, 10, 0), numbers(1, 10))
    assert reconcile_tenant(owner.tenant).balanced


def test_a_pipe_does_not_send_an_erased_event_again(owner: Owner, source: Any) -> None:
    sell(source, 1, 5)
    source.execute("UPDATE sales SET shop = 'ada' WHERE number = 3")
    pipes.create(owner.tenant, definition(PIPE))
    bring(owner, "sales")
    with with_settings(UPKEEP__CLAIM_DAYS=30):
        receipt = erasure.erase(owner.tenant, "sales", "shop=ada")
        (claims,) = (remainder for remainder in receipt["remains"] if remainder["where"].startswith("claims"))
        assert (claims["until"], "a pipe may send" in claims["why"]) == (None, True)
        bring(owner, "sales", full=True)
    assert (counts(owner), ids(owner)) == ((SyncState.DONE, 0, 5, 0), ["1", "2", "4", "5"])


def order(event_id: str) -> bytes:
    return json.dumps(
        {
            "event_id": event_id,
            "dataset": "orders",
            "timestamp": "2026-11-19T10:00:00Z",
            "data": {"country": "DE"},
        }
    ).encode()


def test_lines_of_files_become_events_each_once(owner: Owner, folder: Folder) -> None:
    def sale(number: int, **more: Any) -> dict[str, Any]:
        return {"number": number, "sold_at": f"2026-03-0{number}T12:00:00+02:00", "_by": "x"} | more

    folder.write("1.ndjson", lines(sale(1), sale(2)))
    pipes.create(owner.tenant, definition(FILES | {"path": "*.ndjson"}))
    assert registry.find_dataset(owner.tenant, "sales").kind == DatasetKind.EVENTS
    bring(owner, "sales")
    assert counts(owner) == (SyncState.DONE, 2, 0, 0)
    assert bring(owner, "sales").rows == 0, "no file has changed"
    bad = [{"number": 5}, sale(6, sold_at=None), sale(7, sold_at=1773900000), sale(8, sold_at="yesterday")]
    folder.write("2.ndjson", lines(sale(2), sale(3, sold_at="2026-03-03"), sale(4), *bad))
    bring(owner, "sales")
    assert counts(owner) == (SyncState.DONE, 2, 3, 4)
    folder.remove("1.ndjson")
    bring(owner, "sales")
    rows = {row["id"]: row for row in owner.rows("sales")}
    assert sorted(rows) == ids(owner) == numbers(1, 4), "of a file that is gone the events stay"
    assert rows["1"]["timestamp"] == datetime(2026, 3, 1, 10, tzinfo=UTC)
    assert rows["3"]["timestamp"] == datetime(2026, 3, 3, tzinfo=UTC)
    assert json.loads(rows["1"]["_extra"]) == {"_by": "x"}, "nothing of a row is left out"
    letters = [json.loads(letter["payload"]) for letter in owner.dead_letters()]  # of two runs
    errors = {letter["event_id"]: letter["context"]["error"] for letter in letters}
    assert errors["5"] == "the row has no sold_at"
    assert all(errors[number].startswith("sold_at: not an RFC 3339") for number in ("6", "7", "8"))
    assert {letter["context"]["file"] for letter in letters} == {"2.ndjson"}
    assert sorted(letter["context"]["line"] for letter in letters) == [4, 4, 5, 5, 6, 6, 7, 7]
    assert {letter["data"].get("sold_at") for letter in letters} == {None, 1773900000, "yesterday"}
    folder.write("1.ndjson", lines({"number": 9}, {"number": 10}))
    with pytest.raises(UserError, match="the file has no column sold_at") as caught:
        bring(owner, "sales")
    assert caught.value.where == {"file": "1.ndjson"}
    settle(owner)
    assert len(owner.dead_letters()) == len(letters), "no row of it was sent"
    assert reconcile_tenant(owner.tenant).balanced


def test_rows_of_parquet_files_become_events(owner: Owner, folder: Folder) -> None:
    def write(name: str, **columns: Any) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(columns), sink)
        folder.write(name, sink.getvalue().to_pybytes())

    number, at = pa.array([1, 2, 3]), datetime(2026, 3, 1, 12)
    write("1.parquet", number=number, sold_at=pa.array([at, at, None], pa.timestamp("us")), shop=["a"] * 3)
    pipes.create(owner.tenant, definition(FILES | {"path": "*.parquet"}))
    assert sorted(registry.find_dataset(owner.tenant, "sales").schema["properties"]) == ["number", "shop"]
    bring(owner, "sales")
    assert (counts(owner), ids(owner)) == ((SyncState.DONE, 2, 0, 1), ["1", "2"])
    assert {row["timestamp"] for row in owner.rows("sales")} == {at.replace(tzinfo=UTC)}
    zoned = pa.array([at] * 3, pa.timestamp("ms", "Europe/Berlin"))
    write("2.parquet", number=pa.array([2, 3, 4]), sold_at=zoned, shop=["b"] * 3)
    bring(owner, "sales")
    assert (counts(owner), ids(owner)) == ((SyncState.DONE, 2, 3, 1), numbers(1, 4))
    write("2.parquet", number=number, shop=["c"] * 3)
    with pytest.raises(UserError, match="the file has no column sold_at, which is the events' timestamp"):
        bring(owner, "sales")
    settle(owner)
    assert ids(owner) == numbers(1, 4)


def test_a_pipe_that_makes_no_events_is_refused(owner: Owner, source: Any, folder: Folder) -> None:
    with database(owner.tenant) as other:
        other.execute(TABLE)
        other.execute("CREATE TABLE times (n int PRIMARY KEY, sold_at time, all_of timestamptz[], t text)")
        for members, why in (
            ({"mode": "changes"}, "which are only appended: changes are not captured"),
            ({"timestamp": ""}, "timestamp names no column"),
            ({"timestamp": "nowhere"}, "no column nowhere, which is the events' timestamp"),
            ({"table": "times"}, "the column sold_at is not a time"),
            ({"table": "times", "timestamp": "all_of"}, "the column all_of is not a time"),
            ({"table": "times", "timestamp": "t"}, "the column t is not a time"),
        ):
            with pytest.raises((UserError, NotFound), match=why):
                pipes.create(owner.tenant, definition(PIPE | members))
        for members in (
            {"pipe": "p", "dataset": "d", "transform": "SELECT id FROM planes"},
            {"pipe": "p", "dataset": "d", "source": SOURCE, "feed": "/v1/datasets/planes/entities"},
            {"pipe": "p", "from": "d", "to": SOURCE, "table": "t"},
        ):
            with pytest.raises(UserError, match="only rows of tables and files become events"):
                definition(members | {"timestamp": "at"})
        without = {name: value for name, value in PIPE.items() if name != "timestamp"}
        with pytest.raises(UserError, match="brings entities, and this is a dataset of events"):
            pipes.create(owner.tenant, definition(without | {"dataset": "orders"}))
        strict = '{"type": "object", "properties": {"sold_at": {}}, "required": ["sold_at"]}'
        uri = registry.publish_schema(owner.tenant, "strict", strict).schema_uri
        registry.create_dataset(owner.tenant, "strict", uri)
        with pytest.raises(UserError, match="schema requires sold_at, which is in the envelope"):
            pipes.create(owner.tenant, definition(PIPE | {"dataset": "strict"}))
        uri = registry.publish_schema(owner.tenant, "sales", '{"type": "object"}').schema_uri
        registry.create_dataset(owner.tenant, "sales", uri, kind=DatasetKind.ENTITIES)
        with pytest.raises(UserError, match="brings events, and this is a dataset of entities"):
            pipes.create(owner.tenant, definition(PIPE))
    folder.write("a.ndjson", lines({"number": 1}))
    folder.write("a.csv", b"number,amount\n1,2\n")
    for path in ("a.ndjson", "a.csv"):
        with pytest.raises(UserError, match="no column sold_at"):
            pipes.create(owner.tenant, definition(FILES | {"path": path, "dataset": "others"}))
    assert pipes.list_pipes(owner.tenant) == []
    with pytest.raises(NotFound, match="no such dataset of entities"):
        syncs.decide(owner.tenant, "orders", 1, commit=False)


def test_a_dataset_of_a_pipe_of_events_is_deleted_after_it(owner: Owner, source: Any) -> None:
    sell(source, 1, 3)
    pipes.create(owner.tenant, definition(PIPE))
    bring(owner, "sales")
    with pytest.raises(Exception, match="a pipe writes this dataset"):
        registry.delete_dataset(owner.tenant, "sales")
    pipes.delete(owner.tenant, "sales")
    registry.delete_dataset(owner.tenant, "sales")
    pipes.create(owner.tenant, definition(PIPE))
    bring(owner, "sales")
    assert (counts(owner), ids(owner)) == ((SyncState.DONE, 3, 0, 0), numbers(1, 3))


@pytest.mark.slow
def test_rows_beyond_the_quota_are_set_aside_and_land_once(owner: Owner, source: Any) -> None:
    sell(source, 1, 10)
    pipes.create(owner.tenant, definition(PIPE))
    with with_settings(LIMITS__MAX_RECORDS_PER_MONTH=4):
        bring(owner, "sales")
        assert counts(owner) == (SyncState.DONE, 4, 0, 6)
    bring(owner, "sales")
    assert (counts(owner), ids(owner)) == ((SyncState.DONE, 6, 4, 0), numbers(1, 10))


def test_a_definition_without_a_timestamp_keeps_its_document() -> None:
    """A digest of it is in the positions of files, from which an existing pipe continues."""
    parsed = definition({"pipe": "p", "source": "s", "path": "a.csv", "key": ["tail"], "dataset": "d"})
    assert parsed.other_end.document == {
        "source": "s",
        "path": "a.csv",
        "format": "csv",
        "key": ["tail"],
    }
    for members in (PIPE, FILES | {"path": "a.csv"}):
        assert definition(definition(members).document) == definition(members)
        assert definition(members).kind == DatasetKind.EVENTS
    assert "timestamp" not in definition({**PIPE, "timestamp": None}).document


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-03-29", "2026-03-29T00:00:00Z"),
        ("2026-03-29 02:30:00", "2026-03-29 02:30:00Z"),
        ("2026-03-29T02:30:00.5", "2026-03-29T02:30:00.5Z"),
        ("2026-03-29 02:30:00.5+02", "2026-03-29 02:30:00.5+02:00"),
        ("2026-03-29T02:30:00+02:00", "2026-03-29T02:30:00+02:00"),
        ("infinity", "infinity"),
        (5, None),
        (None, None),
    ],
)
def test_the_time_of_a_value(text: Any, time: str | None) -> None:
    assert rows.time_of(text) == time


@pytest.mark.parametrize("timestamp", [None, "sold_at"])
def test_a_value_that_is_not_text_cannot_be_a_key_or_a_time(timestamp: str | None) -> None:
    """A row with one is refused, and does not end the run."""
    row = rows.members(b'{"number": "\xff", "sold_at": "\xff", "n": 1}')
    maker = rows.Maker("sales", "2026-03-01T00:00:00Z", ("number",), timestamp)
    key, event = maker.event(row, "a.ndjson", 1)
    assert (key, b"the row has no number" in event) == (b"", True)
    assert rows.time_of(row["sold_at"]) is None
