"""Previews: the rows that PyIceberg finds, whatever is asked, within the limits, and of one's own tenant."""

import json
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThan
from pyiceberg.table import Table
from pyiceberg.types import LongType, StringType
from pyspark.sql.connect.session import SparkSession
from support.here import ingest_here as ingest
from support.ingest import SCHEMA, Owner, event, make_owner
from support.lake import changed, pointing_at, table
from support.moves import moved
from typer.testing import CliRunner

from pulse_api import cli
from pulse_pipelines import registry
from pulse_pipelines.domain.requests import MAX_ROWS
from pulse_pipelines.erasure import run as erasure
from pulse_pipelines.query import partial_table
from pulse_pipelines.query.file_pruning import Span, newest_files, widening_spans
from pulse_pipelines.query.preview import moment, preview
from pulse_pipelines.query.snapshots import manifests, of_current, snapshots
from pulse_pipelines.sql import pinned
from pulse_pipelines.tables import parquet_files
from pulse_pipelines.validation import limits
from pulse_resources import iceberg
from pulse_resources.errors import NotFound, PulseError, Terminal, Transient, UserError
from pulse_resources.settings import Settings, load_settings

BEGIN = datetime(2026, 11, 10, tzinfo=UTC)
DAYS, BATCHES, EVENTS = 6, 4, 120
FOREVER = float("inf")


def random_events(chance: random.Random, batch: int) -> Iterator[bytes]:
    """Events over several days, mostly recent ones; some at the same moment, some sent before."""
    for number in range(EVENTS):
        span = timedelta(days=DAYS * (batch + 1) / BATCHES)
        at = BEGIN + span * chance.choice([chance.random(), 1 - chance.random() ** 4])
        if chance.random() < 0.3:
            at = at.replace(minute=0, second=0, microsecond=0)
        data: dict[str, Any] = {"country": chance.choice(["DE", 'a"b', "é"]), "count": number}
        if chance.random() < 0.5:
            data |= {"amount": chance.random(), "address": {"zip": str(number)}, "new": [number]}
        again = batch and chance.random() < 0.1
        sent = json.loads(event(f"{batch - 1 if again else batch}-{number}", **data))
        yield json.dumps(sent | {"timestamp": at.isoformat(), "context": {"n": number}}).encode()


@dataclass(frozen=True)
class Lake:
    owner: Owner
    table: Table


@pytest.fixture(scope="module")
def lake(stack: Settings) -> Iterator[Lake]:
    """A dataset with several batches of random events, and a day of which rows were deleted."""
    owner, chance = make_owner(), random.Random(7)  # noqa: S311
    for batch in range(BATCHES):
        owner.send(*random_events(chance, batch))
        ingest(owner)
    with pointing_at(owner, changed(owner, lambda target: target.delete(GreaterThanOrEqual("count", 100)))):
        yield Lake(owner, table(owner))


def expected(
    source: Table,
    limit: int,
    *,
    columns: list[str] | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    snapshot_id: int | None = None,
) -> list[dict[str, Any]]:
    """The same by PyIceberg: everything is read, then sorted, then cut."""
    within: BooleanExpression = AlwaysTrue()
    if start is not None:
        within = And(within, GreaterThanOrEqual("timestamp", start.isoformat()))
    if end is not None:
        within = And(within, LessThan("timestamp", end.isoformat()))
    rows = source.scan(within, snapshot_id=snapshot_id).to_arrow()
    order = [("timestamp", "descending"), ("_kafka_partition", "ascending"), ("_offset", "ascending")]
    newest = rows.sort_by(order).slice(0, limit)
    return list(newest.select(columns or newest.column_names).to_pylist())


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sample(6)
def test_a_preview_has_the_rows_that_pyiceberg_finds(
    lake: Lake, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)  # noqa: S311
    monkeypatch.setattr("pulse_pipelines.query.file_pruning.MANY_ROWS", chance.choice([0, 50_000]))
    names = lake.table.schema().column_names
    top = [name for name in names if "." not in name]
    options: dict[str, Any] = {}
    if chance.random() < 0.6:
        options["columns"] = chance.sample(top, chance.randint(1, len(top)))
    moments = sorted(BEGIN + timedelta(days=DAYS) * chance.random() for _ in range(2))
    if chance.random() < 0.5:
        options["start"] = moments[0].astimezone(chance.choice([UTC, None]))
    if chance.random() < 0.5:
        options["end"] = moments[1].replace(minute=0, second=0, microsecond=0)
    if chance.random() < 0.5:
        options["snapshot_id"] = chance.choice(lake.table.snapshots()).snapshot_id
    limit = chance.choice([1, 2, 10, 60, 1000, MAX_ROWS])
    assert preview(lake.owner.tenant, "orders", limit, **options).to_pylist() == expected(
        lake.table, limit, **options
    )


def test_rows_at_the_edges_of_a_range_are_in_at_its_start_and_out_at_its_end(lake: Lake) -> None:
    rows = expected(lake.table, MAX_ROWS, columns=["timestamp"])
    first, last = rows[-1]["timestamp"], rows[0]["timestamp"]
    rows_between = preview(
        lake.owner.tenant, "orders", MAX_ROWS, start=first, end=last, columns=["timestamp"]
    )
    assert rows_between.to_pylist() == [row for row in rows if row["timestamp"] < last]
    assert rows_between.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    nothing = preview(lake.owner.tenant, "orders", 5, start=last, end=first)
    assert (nothing.num_rows, nothing.column_names[:2]) == (0, ["id", "tenant_id"])


def test_only_files_that_may_hold_the_newest_rows_are_read(lake: Lake) -> None:
    metadata = of_current(lambda now: now, lake.owner.tenant, "orders")
    snapshot = metadata.current_snapshot()
    assert snapshot is not None
    listed = manifests(snapshot.manifest_list)
    everything = newest_files(metadata, listed, Span(), MAX_ROWS, FOREVER)
    files = newest_files(metadata, listed, Span(), 3, FOREVER)
    assert files is not None
    assert everything is not None
    assert 0 < len(files) < len(everything) == len(list(lake.table.scan().plan_files()))
    assert {f.file.file_path for f in files} < {f.file.file_path for f in everything}


def test_the_newest_rows_of_large_files_are_read_from_their_end(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulse_pipelines.query.file_pruning.MANY_ROWS", 0)
    metadata = of_current(lambda now: now, lake.owner.tenant, "orders")
    snapshot = metadata.current_snapshot()
    assert snapshot is not None
    whole = Span.between(BEGIN, BEGIN + timedelta(days=DAYS))
    newest = newest_files(metadata, manifests(snapshot.manifest_list), whole, MAX_ROWS, FOREVER)
    parts = list(widening_spans(newest, whole, 1))
    assert len(parts) > 1
    assert parts[-1] == whole
    assert all(shorter.start > longer.start for shorter, longer in pairwise(parts))
    assert {part.end for part in parts} == {whole.end}
    assert list(widening_spans(newest, whole, MAX_ROWS)) == list(widening_spans(None, whole, 1)) == [whole]


def test_snapshots_tell_the_history(lake: Lake) -> None:
    history = snapshots(lake.owner.tenant, "orders")
    assert [s.snapshot_id for s in history] == [s.snapshot_id for s in reversed(lake.table.snapshots())]
    assert all(newer.parent_id == older.snapshot_id for newer, older in pairwise(history))
    assert all(newer.committed_at >= older.committed_at for newer, older in pairwise(history))
    landed = history[-BATCHES:]
    assert [s.operation for s in landed] == ["append"] * BATCHES
    assert all(s.batch_id and s.added_rows > 0 for s in landed)
    assert len({s.batch_id for s in landed}) == BATCHES
    assert history[0].batch_id is None
    assert landed[0].total_rows == sum(s.added_rows for s in landed)
    assert history[0].total_rows == len(expected(lake.table, MAX_ROWS))
    assert snapshots(lake.owner.tenant, "orders", 2) == history[:2]


def test_as_of_reads_the_snapshot_that_was_current_then(lake: Lake) -> None:
    tenant = lake.owner.tenant
    history = snapshots(tenant, "orders")
    for newer, older in pairwise(history):
        by_id = preview(tenant, "orders", MAX_ROWS, snapshot_id=older.snapshot_id)
        assert preview(tenant, "orders", MAX_ROWS, as_of=older.committed_at) == by_id
        before = newer.committed_at - timedelta(microseconds=1)
        assert preview(tenant, "orders", MAX_ROWS, as_of=before) == by_id
    now = datetime.now(UTC)
    assert preview(tenant, "orders", 9, as_of=now) == preview(tenant, "orders", 9)
    earlier = history[-1].committed_at - timedelta(milliseconds=1)
    empty = preview(tenant, "orders", 9, as_of=earlier)
    assert (empty.num_rows, empty.schema) == (0, preview(tenant, "orders", 9).schema)


def test_an_expired_snapshot_is_absent(lake: Lake) -> None:
    oldest, second, *_ = lake.table.snapshots()
    metadata = lake.table.metadata
    remaining = metadata.model_copy(
        update={
            "snapshots": [s for s in metadata.snapshots if s is not oldest],
            "snapshot_log": [e for e in metadata.snapshot_log if e.snapshot_id != oldest.snapshot_id],
        }
    )
    place = f"{lake.table.location()}/metadata/expired-{parquet_files.token()}.metadata.json"
    with iceberg.file_io().new_output(place).create() as sink:
        sink.write(remaining.model_dump_json().encode())
    tenant = lake.owner.tenant
    with pointing_at(lake.owner, place):
        assert [s.snapshot_id for s in snapshots(tenant, "orders")][-1] == second.snapshot_id
        with pytest.raises(NotFound, match="no such snapshot"):
            preview(tenant, "orders", 5, snapshot_id=oldest.snapshot_id)
        then = datetime.fromtimestamp(oldest.timestamp_ms / 1000, UTC)
        with pytest.raises(NotFound, match="kept since"):
            preview(tenant, "orders", 5, as_of=then)
        assert preview(tenant, "orders", 5).to_pylist() == expected(lake.table, 5)


def test_a_snapshot_outside_the_history_is_absent(lake: Lake) -> None:
    tenant, current = lake.owner.tenant, lake.table.current_snapshot()
    assert current is not None
    rolled_back = current.model_copy(update={"snapshot_id": 77})
    metadata = lake.table.metadata
    beside = metadata.model_copy(update={"snapshots": [*metadata.snapshots, rolled_back]})
    place = f"{lake.table.location()}/metadata/beside-{parquet_files.token()}.metadata.json"
    with iceberg.file_io().new_output(place).create() as sink:
        sink.write(beside.model_dump_json().encode())
    other = make_owner()
    other.send(event("x"))
    ingest(other)
    theirs = snapshots(other.tenant, "orders")[0].snapshot_id
    with pointing_at(lake.owner, place):
        for absent in (77, theirs, 0, -1, 2**70):
            with pytest.raises(NotFound, match="no such snapshot"):
                preview(tenant, "orders", 5, snapshot_id=absent)


def test_an_empty_table_has_its_columns(stack: Settings) -> None:
    owner = make_owner()
    rows = preview(owner.tenant, "orders", 10, start=BEGIN, as_of=datetime.now(UTC))
    assert rows.num_rows == 0
    assert rows.schema == preview(owner.tenant, "orders", 1).schema
    assert rows.column_names == [field.name for field in table(owner).schema().fields]
    assert rows.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert preview(owner.tenant, "orders", 10, columns=["count", "id"]).column_names == ["count", "id"]
    assert snapshots(owner.tenant, "orders") == []
    with pytest.raises(NotFound, match="no such snapshot"):
        preview(owner.tenant, "orders", 10, snapshot_id=1)


def widened(target: Table) -> None:
    with target.update_schema() as change:
        change.add_column("colour", StringType())
        change.add_column(("address", "street"), StringType())
        change.make_column_optional("_batch")


def test_an_evolved_table_shows_new_columns_now_and_old_ones_then(lake: Lake) -> None:
    tenant, before = lake.owner.tenant, preview(lake.owner.tenant, "orders", 50)
    with pointing_at(lake.owner, changed(lake.owner, widened)):
        now = preview(tenant, "orders", 50)
        assert now.column_names == [*before.column_names, "colour"]
        rows = now.to_pylist()
        assert {row.pop("colour") for row in rows} == {None}
        streets = {row["address"].pop("street") for row in rows if row["address"]}
        assert streets == {None}
        assert rows == before.to_pylist()
        current = lake.table.current_snapshot()
        assert current is not None
        assert preview(tenant, "orders", 50, snapshot_id=current.snapshot_id) == before
        assert preview(tenant, "orders", 3, columns=["colour"]).to_pylist() == [{"colour": None}] * 3
        with pytest.raises(UserError, match="no column 'colour'"):
            preview(tenant, "orders", 3, columns=["colour"], snapshot_id=current.snapshot_id)


def test_a_dataset_that_moved_to_a_newer_schema_is_read_by_each_snapshots_own(stack: Settings) -> None:
    owner = make_owner()
    owner.send(*(event(f"old-{number}", count=number) for number in range(5)))
    ingest(owner)
    fields = SCHEMA["properties"]
    wider = {"count": {"type": "number"}, "colour": {"type": "string"}}
    document = json.dumps({"type": "object", "properties": fields | wider})
    moved(owner.tenant, "orders", registry.publish_schema(owner.tenant, "orders", document).schema_uri)
    owner.send(*(event(f"new-{number}", count=number + 0.5, colour="red") for number in range(5)))
    ingest(owner)
    current, history = table(owner), snapshots(owner.tenant, "orders")
    assert preview(owner.tenant, "orders", 7).to_pylist() == expected(current, 7)
    assert {type(row["count"]) for row in preview(owner.tenant, "orders", 10).to_pylist()} == {float}
    for snapshot in history:
        then = preview(owner.tenant, "orders", 7, snapshot_id=snapshot.snapshot_id)
        assert then.to_pylist() == expected(current, 7, snapshot_id=snapshot.snapshot_id)
    assert "colour" not in then.column_names
    assert then.schema.field("count").type == pa.int64()


def test_a_preview_applies_delete_files_of_another_engine(stack: Settings) -> None:
    owner = make_owner()
    owner.send(*(event(str(number), count=number) for number in range(20)))
    ingest(owner)
    name = f"{iceberg.CATALOG}.{owner.tenant.namespace}.orders"
    spark = SparkSession.builder.remote(load_settings().spark.remote).getOrCreate()
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    spark.sql(f"DELETE FROM {name} WHERE count < 15").collect()
    metadata = of_current(lambda now: now, owner.tenant, "orders")
    snapshot = metadata.current_snapshot()
    assert snapshot is not None
    assert newest_files(metadata, manifests(snapshot.manifest_list), Span(), 3, FOREVER) is None
    rows = preview(owner.tenant, "orders", 20, columns=["count"]).to_pylist()
    assert [row["count"] for row in rows] == [15, 16, 17, 18, 19]
    assert preview(owner.tenant, "orders", 3, columns=["count"]).to_pylist() == rows[:3]


HOSTILE = ['id"', "id' OR 1=1 --", 'id" FROM x; DROP TABLE y; --', "", "*", "ID", "address.zip", "no\0"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_column_that_the_table_has_not_is_refused_with_those_that_it_has(lake: Lake, name: str) -> None:
    with pytest.raises(UserError, match="no column") as caught:
        preview(lake.owner.tenant, "orders", 5, columns=["id", name])
    assert "timestamp, ingested_at" in str(caught.value)


def test_a_column_with_quotes_in_its_name_is_read(lake: Lake) -> None:
    """Pulse declares none; a table that another engine changed may have one."""
    odd = "a\"b'; SELECT 1 --"

    def odder(target: Table) -> None:
        with target.update_schema() as change:
            change.add_column((odd,), LongType())

    with pointing_at(lake.owner, changed(lake.owner, odder)):
        assert preview(lake.owner.tenant, "orders", 1, columns=[odd]).to_pylist() == [{odd: None}]
        assert odd in preview(lake.owner.tenant, "orders", 1).column_names


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"limit": 0}, "the limit is 0"),
    ({"limit": MAX_ROWS + 1}, "the limit is 10001"),
    ({"limit": -1}, "the limit is -1"),
    ({"columns": []}, "no column is named"),
    ({"columns": ["id", "count", "id"]}, "'id' is named twice"),
    ({"start": datetime(2026, 1, 1)}, "no time zone"),
    ({"as_of": datetime(2026, 1, 1)}, "no time zone"),
    ({"as_of": BEGIN, "snapshot_id": 1}, "both a snapshot and a time"),
]


@pytest.mark.parametrize(("options", "says"), WRONG)
def test_a_wrong_request_has_a_specific_error(lake: Lake, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        preview(lake.owner.tenant, "orders", **({"limit": 5} | options))


def test_the_ends_of_time_are_moments(lake: Lake) -> None:
    first, last = moment("0001-01-01T00:00:00Z"), moment("9999-12-31T23:59:59.999999Z")
    assert preview(lake.owner.tenant, "orders", 5, start=first, end=last).to_pylist() == expected(
        lake.table, 5
    )
    assert moment("2026-11-19T10:00:00+01:00") == datetime(2026, 11, 19, 9, tzinfo=UTC)
    for text in ("2026-11-19", "now", "1700000000", "2026-11-19T10:00:00", "' OR 1=1"):
        with pytest.raises(UserError, match="RFC 3339"):
            moment(text)


@pytest.mark.parametrize("read", [lambda t, s: preview(t, s, 5), snapshots])
def test_a_foreign_slug_is_absent(lake: Lake, read: Any) -> None:
    other = make_owner()
    uri = registry.publish_schema(other.tenant, "x", '{"type": "object"}').schema_uri
    registry.create_dataset(other.tenant, "theirs", uri)
    errors = []
    for slug in ("theirs", "absent", "orders' OR '1'='1"):
        with pytest.raises(PulseError) as caught:
            read(lake.owner.tenant, slug)
        errors.append(caught.value)
    assert {type(error) for error in errors} == {NotFound}
    assert len({str(error).replace(error.where["dataset"], "_") for error in errors}) == 1


def limited(monkeypatch: pytest.MonkeyPatch, **values: object) -> None:
    settings = load_settings()
    changed_ = settings.model_copy(update={"api": settings.api.model_copy(update=values)})
    monkeypatch.setattr("pulse_pipelines.query.preview.load_settings", lambda: changed_)


def test_a_preview_beyond_the_memory_limit_is_an_error(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, preview_memory="1MB")
    with pytest.raises(UserError, match="more than the 1MB of memory"):
        preview(lake.owner.tenant, "orders", MAX_ROWS)


def test_a_preview_beyond_the_time_limit_is_an_error(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, preview_seconds=0.001)
    with pytest.raises(Transient, match=r"longer than the 0\.001 s|are busy"):
        preview(lake.owner.tenant, "orders", 5)


def test_a_file_that_is_gone_or_damaged_is_named(stack: Settings) -> None:
    owner = make_owner()
    owner.send(event("a"))
    ingest(owner)
    (file,) = [task.file for task in table(owner).scan().plan_files()]
    with iceberg.file_io().new_output(file.file_path).create(overwrite=True) as sink:
        sink.write(b"x" * file.file_size_in_bytes)
    with pytest.raises(Terminal, match="damaged"):
        preview(owner.tenant, "orders", 5)
    other = make_owner()
    other.send(event("a"))
    ingest(other)
    snapshot = table(other).current_snapshot()
    assert snapshot is not None
    iceberg.file_io().delete(snapshot.manifest_list)
    with pytest.raises(Terminal, match="gone"):
        preview(other.tenant, "orders", 5)


def test_a_change_of_the_table_is_seen_at_once_despite_cached_views(stack: Settings) -> None:
    """A batch, an erasure that leaves a file of the same rows, and a deletion beside the files."""
    owner = make_owner()

    def preview_ids(**options: Any) -> list[str]:
        answers = [preview(owner.tenant, "orders", 10, columns=["id"], **options) for _ in range(2)]
        assert answers[0] == answers[1], "by a view that is made, and by one that was kept"
        return sorted(answers[0].column("id").to_pylist())

    def snapshot() -> int:
        return snapshots(owner.tenant, "orders")[0].snapshot_id

    owner.send(event("a", country="DE"), event("b", country="FR"))
    ingest(owner)
    first = snapshot()
    assert preview_ids() == ["a", "b"]
    owner.send(event("c", country="FR"))
    ingest(owner)
    assert (preview_ids(), preview_ids(snapshot_id=first)) == (["a", "b", "c"], ["a", "b"])
    before = len(partial_table._CACHE._views)
    assert preview_ids() == ["a", "b", "c"]
    assert len(partial_table._CACHE._views) == before, "it was kept"
    erasure.erase(owner.tenant, "orders", "event_id=a")
    assert preview_ids() == ["b", "c"]
    with pytest.raises(NotFound):
        preview_ids(snapshot_id=first)
    with pointing_at(owner, changed(owner, lambda target: target.delete("country = 'FR'"))):
        assert preview_ids() == []
    assert preview_ids() == ["b", "c"]


def test_views_are_kept_within_their_bytes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = partial_table._ViewCache()
    monkeypatch.setattr(partial_table, "_CACHE", cache)
    tenant, ids = lake.owner.tenant, [snapshot.snapshot_id for snapshot in lake.table.snapshots()]
    preview(tenant, "orders", 1, snapshot_id=ids[0])
    one = cache.bytes
    assert one > 1_000
    monkeypatch.setattr(partial_table, "CACHED_BYTES", 3 * one)
    for snapshot_id in ids:
        preview(tenant, "orders", MAX_ROWS, snapshot_id=snapshot_id)
        assert cache.bytes <= 3 * one
        assert cache.bytes == sum(partial_table._size(key, files) for key, (_, files) in cache._views.items())
    assert 0 < len(cache._views) < len(ids)


def test_nothing_stays_on_the_disk(lake: Lake) -> None:
    folder = Path(tempfile.gettempdir())
    before = set(folder.glob("pulse-view-*"))
    preview(lake.owner.tenant, "orders", 5)
    with pytest.raises(UserError):
        preview(lake.owner.tenant, "orders", 5, columns=["absent"])
    assert set(folder.glob("pulse-view-*")) <= before


def test_the_command_line_shows_the_same(lake: Lake) -> None:
    slug, current = lake.owner.tenant.slug, lake.table.current_snapshot()
    assert current is not None
    command = ["preview", slug, "orders", "--limit", "3", "--columns", "id,timestamp"]
    shown = CliRunner().invoke(cli.app, [*command, "--json"], catch_exceptions=False)
    ids = [row["id"] for row in expected(lake.table, 3)]
    assert [row["id"] for row in json.loads(shown.stdout)["rows"]] == ids
    then = ["--snapshot", str(current.snapshot_id), "--from", "2026-01-01T00:00:00Z", "--csv"]
    lines = CliRunner().invoke(cli.app, [*command, *then], catch_exceptions=False).stdout.splitlines()
    assert [line.split(",")[0] for line in lines] == ["id", *ids]
    then[-1] = "--spreadsheet"
    assert CliRunner().invoke(cli.app, [*command, *then]).stdout.splitlines() == lines
    listed = CliRunner().invoke(cli.app, ["snapshots", slug, "orders", "--json"], catch_exceptions=False)
    assert json.loads(listed.stdout)[0]["snapshot_id"] == str(current.snapshot_id)
    assert CliRunner().invoke(cli.app, ["snapshots", slug, "orders"]).stdout.count("append") == BATCHES
    assert CliRunner().invoke(cli.app, [*command, "--json", "--csv"]).exit_code == 2


def test_a_range_from_before_1970_has_all_rows(stack: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    early = stack.ingest.model_copy(update={"earliest_timestamp": datetime(1, 1, 1, tzinfo=UTC)})
    settings = stack.model_copy(update={"ingest": early})
    monkeypatch.setattr(limits, "load_settings", lambda: settings)
    times = (
        "0001-01-01T00:00:01Z",
        "1969-12-30T12:00:00Z",
        "1969-12-31T23:59:59.999999Z",
        "1970-01-01T00:00:00Z",
    )
    owner = make_owner()
    owner.send(*(json.dumps(json.loads(event(at)) | {"timestamp": at}).encode() for at in times))
    ingest(owner)
    for number, start in enumerate(times):
        rows = preview(owner.tenant, "orders", 10, start=moment(start), columns=["id"])
        assert sorted(rows.column("id").to_pylist()) == list(times[number:])
        rows = preview(owner.tenant, "orders", 10, end=moment(start), columns=["id"])
        assert sorted(rows.column("id").to_pylist()) == list(times[:number])

    (table,) = pinned.tables(owner.tenant, ["orders"], [], pinned.Travel())
    assert table.view.bounds is None, "by default no dataset has such rows"
    monkeypatch.setattr(pinned, "load_settings", lambda: settings)
    (table,) = pinned.tables(owner.tenant, ["orders"], [], pinned.Travel())
    snapshot = snapshots(owner.tenant, "orders")[0].snapshot_id
    assert str(snapshot) in (table.view.bounds or ""), "its list of manifests"
    assert table.view.timestamp_fields
