"""Files as sources: all rows of all files, when one changed; what fails or is half deletes nothing."""

import gzip
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.entities import as_model, pages
from support.faults import AtPoint
from support.files import web
from support.ingest import Owner
from support.pipes import bring, settle

from chaos.sources import SOURCE, Folder, stored_source
from pulse_pipelines import pipes, registry
from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.domain.syncs import SyncState
from pulse_pipelines.entities import syncs
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.pipes import fence
from pulse_pipelines.pipes.files import formats
from pulse_pipelines.pipes.watch import watch_one
from pulse_resources import postgres
from pulse_resources.errors import Fenced, NotFound, Transient, UserError
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.settings import Settings

PIPE: dict[str, Any] = {"pipe": "planes", "source": SOURCE, "dataset": "planes", "key": ["tail"]}


@pytest.fixture
def folder(stack: Settings, owner: Owner) -> Iterator[Folder]:
    folder = Folder()
    with stored_source(owner.tenant, folder.address):
        yield folder


def lines(*rows: Mapping[str, Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def latest(owner: Owner) -> dict[str, dict[str, Any]]:
    contents = dict(as_model(pages(owner, slug="planes")))
    return {key: content for key, content in contents.items() if content is not None}


def counts(owner: Owner) -> tuple[str, int, int, int, int]:
    sync = syncs.list_syncs(owner.tenant, "planes")[0]
    return sync.state, sync.created, sync.changed, sync.unchanged, sync.deleted


def make(owner: Owner, path: str, **more: Any) -> None:
    pipes.create(owner.tenant, definition(PIPE | {"path": path} | more))
    syncs.allow(owner.tenant, "planes", 0.5)


def make_dataset(owner: Owner, **properties: Any) -> None:
    document = json.dumps({"type": "object", "properties": properties})
    uri = registry.publish_schema(owner.tenant, "planes", document).schema_uri
    registry.create_dataset(owner.tenant, "planes", uri, kind=DatasetKind.ENTITIES)


def test_rows_of_files_are_entities_that_follow_the_files(owner: Owner, folder: Folder) -> None:
    folder.write("a/planes-1.ndjson", lines({"tail": "N1", "seats": 180}, {"tail": "N2", "seats": 4}))
    folder.write("a/planes-2.ndjson", lines({"tail": "N3", "seats": 320}))
    folder.write("a/other.ndjson", lines({"tail": "N9", "seats": 1}))
    make(owner, "a/planes-*.ndjson")
    assert bring(owner).rows == 3
    assert latest(owner) == {
        "N1": {"tail": "N1", "seats": 180},
        "N2": {"tail": "N2", "seats": 4},
        "N3": {"tail": "N3", "seats": 320},
    }
    folder.write("a/planes-1.ndjson", lines({"tail": "N1", "seats": 190}))
    bring(owner)
    assert counts(owner) == (SyncState.DONE, 0, 1, 1, 1)
    assert sorted(latest(owner)) == ["N1", "N3"]
    folder.write("a/planes-3.ndjson", lines({"tail": "N4"}))
    bring(owner)
    assert counts(owner) == (SyncState.DONE, 1, 0, 2, 0)
    assert reconcile_tenant(owner.tenant).balanced


def test_a_listing_that_has_not_changed_sends_and_deletes_nothing(owner: Owner, folder: Folder) -> None:
    folder.write("planes.ndjson", lines({"tail": "N1"}))
    make(owner, "planes.ndjson")
    first = bring(owner)
    watch_one(pipes.find(owner.tenant, "planes"))
    again = bring(owner)
    assert (again.rows, again.is_full, again.position) == (0, False, first.position)
    assert counts(owner) == (SyncState.DONE, 0, 0, 0, 0)
    assert sorted(latest(owner)) == ["N1"]
    pipes.reset(owner.tenant, "planes")
    assert bring(owner).rows == 1


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["all", "half", "other"])
def test_a_run_with_missing_or_changed_files_deletes_nothing(
    owner: Owner, folder: Folder, at: AtPoint, lost: str
) -> None:
    """All files before the run; or one file between the listing and the reading: removed, or rewritten."""
    folder.write("1.ndjson", lines({"tail": "N1"}))
    folder.write("2.ndjson", lines({"tail": "N2"}))
    make(owner, "*.ndjson")
    bring(owner)
    folder.write("1.ndjson", lines({"tail": "N1", "x": 1}))
    if lost == "all":
        folder.remove("1.ndjson")
        folder.remove("2.ndjson")
        with pytest.raises(NotFound, match="no file of this name"):
            bring(owner)
    else:
        then = folder.remove if lost == "half" else lambda name: folder.write(name, lines({"tail": "N3"}))
        at("pipe.looked", lambda: then("2.ndjson"))
        with pytest.raises(
            Exception, match="listed file is gone" if lost == "half" else "file changed since"
        ):
            bring(owner)
        assert counts(owner)[0] == SyncState.FAILED
    settle(owner)
    assert sorted(latest(owner)) == ["N1", "N2"]
    assert pipes.find(owner.tenant, "planes").error


@pytest.mark.slow
def test_a_damaged_file_deletes_nothing(owner: Owner, folder: Folder) -> None:
    rows = [{"tail": f"N{n}", "x": str(n) * 50} for n in range(2_000)]
    folder.write("planes.ndjson.gz", gzip.compress(lines(*rows)))
    make(owner, "planes.ndjson.gz")
    bring(owner)
    folder.write("planes.ndjson.gz", gzip.compress(lines(*rows))[:-500])
    with pytest.raises(UserError, match="damaged") as caught:
        bring(owner)
    assert caught.value.where == {"file": "planes.ndjson.gz"}
    failed = syncs.list_syncs(owner.tenant, "planes")[0]
    assert failed.reason == f"its run failed: {caught.value.message}"
    assert pipes.find(owner.tenant, "planes").error == f"UserError: {caught.value}"
    settle(owner)
    assert len(latest(owner)) == 2_000


def test_an_invalid_row_is_a_dead_letter_and_holds_deletions(owner: Owner, folder: Folder) -> None:
    folder.write("planes.ndjson", lines({"tail": "N1"}, {"tail": "N2"}))
    make(owner, "planes.ndjson")
    bring(owner)
    none = b'{"tail": "N1"}\n\n[1]\n{"tail": null}\n{"tail": "N3", \n{"seats": 1}\n'
    large = lines({"tail": "N4", "note": "x" * 300_000})
    folder.write("planes.ndjson", none + large)
    bring(owner)
    letters = owner.dead_letters()
    contexts = [
        json.loads(letter["payload"])["context"] for letter in letters if letter["reason"] != "oversize"
    ]
    assert sorted((context["file"], context["line"]) for context in contexts) == [
        ("planes.ndjson", line) for line in (3, 4, 5, 6)
    ]
    assert {letter["dataset"] for letter in letters} == {"planes"}
    assert len(letters) == 5
    assert counts(owner)[0] == SyncState.HELD, "N2 may be one of those"
    assert sorted(latest(owner)) == ["N1", "N2"]
    assert reconcile_tenant(owner.tenant).balanced


@pytest.mark.slow
def test_csv_is_text_unless_the_dataset_knows_better(owner: Owner, folder: Folder) -> None:
    folder.write("planes.csv", b'tail,seats,note\nN1,007,"a ""b"",\nc"\nN2,,\n')
    make(owner, "planes.csv")
    bring(owner)
    assert latest(owner) == {"N1": {"tail": "N1", "seats": "007", "note": 'a "b",\nc'}, "N2": {"tail": "N2"}}


def test_csv_has_the_types_of_its_dataset(owner: Owner, folder: Folder) -> None:
    make_dataset(owner, tail={"type": "string"}, seats={"type": ["integer", "null"]}, ok={"type": "boolean"})
    text = "tail,seats,ok\nN1,180,true\n7,4,false\nN3,many,true\nN4\n,1,true\n"
    folder.write("planes.csv.gz", gzip.compress(b"\xef\xbb\xbf" + text.encode()))
    make(owner, "planes.csv.gz")
    bring(owner)
    assert latest(owner) == {
        "N1": {"tail": "N1", "seats": 180, "ok": True},
        "7": {"tail": "7", "seats": 4, "ok": False},
    }
    letters = [json.loads(letter["payload"]) for letter in owner.dead_letters()]
    assert sorted(letter["context"]["line"] for letter in letters if "context" in letter) == [5, 6]
    assert [letter["event_id"] for letter in letters if "context" not in letter] == ["N3"]


def test_parquet_has_the_values_that_postgres_would_have(owner: Owner, folder: Folder) -> None:
    moment = datetime(2026, 3, 29, 2, 30, 0, 500_000)
    rows = pa.table(
        {
            "tail": ["N1", "N2"],
            "seats": pa.array([180, None], pa.int32()),
            "price": pa.array([Decimal("99.50"), Decimal("0.10")], pa.decimal128(12, 2)),
            "tiny": pa.array([Decimal("1E-9"), None], pa.decimal128(12, 9)),
            "short": pa.array([0.1, None], pa.float32()),
            "at": pa.array([moment.replace(tzinfo=UTC), None], pa.timestamp("us", "Europe/Berlin")),
            "local": pa.array([moment, None], pa.timestamp("ms")),
            "day": pa.array([date(2026, 3, 29), None]),
            "raw": pa.array([b"\x00\x01", None]),
            "tags": pa.array([["a", "b"], None]),
            "more": pa.array([{"x": Decimal("1.10")}, None], pa.struct([("x", pa.decimal128(5, 2))])),
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    folder.write("planes.parquet", sink.getvalue().to_pybytes())
    make(owner, "planes.parquet")
    bring(owner)
    assert not owner.dead_letters()
    assert latest(owner) == {
        "N1": {
            "tail": "N1",
            "seats": 180,
            "price": "99.50",
            "tiny": "0.000000001",
            "short": 0.1,
            "at": "2026-03-29T02:30:00.500000+00:00",
            "local": "2026-03-29T02:30:00.5",
            "day": "2026-03-29",
            "raw": "AAE=",
            "tags": ["a", "b"],
            "more": {"x": "1.10"},
        },
        "N2": {"tail": "N2", "price": "0.10"},
    }


def test_no_one_sees_the_key_of_a_source(owner: Owner, folder: Folder, stack: Settings) -> None:
    folder.write("planes.ndjson", lines({"tail": "N1"}))
    make(owner, "planes.ndjson")
    with (
        stored_source(owner.tenant, folder.address.replace("@", "x@")),
        pytest.raises((UserError, Transient)) as caught,
    ):
        bring(owner)
    secret = stack.object_store.secret_key.get_secret_value()
    pipe = pipes.find(owner.tenant, "planes")
    assert secret not in f"{caught.value!r} {caught.value} {pipe.document} {pipe.error}"
    assert pipe.document["other_end"] == f"{SOURCE}/planes.ndjson"


def test_a_task_of_a_run_that_died_sends_nothing_once_the_next_has_begun(
    owner: Owner, folder: Folder
) -> None:
    folder.write("planes.ndjson", lines({"tail": "N1"}))
    make(owner, "planes.ndjson")
    bring(owner)
    pipe = pipes.find(owner.tenant, "planes")
    old = fence.begin(pipe)
    with fence.joined(old) as fenced:
        passed = fenced(iter([1, 2]))
        assert next(passed) == 1
        with pytest.raises(Transient, match="still in flight"):
            fence.begin(pipe)
        with pytest.raises(Transient, match="still in flight"):
            bring(owner, full=True)
    assert bring(owner, full=True).rows == 1
    with pytest.raises(Fenced, match="another run"), fence.joined(old):
        pass


@pytest.mark.slow
def test_a_parquet_file_too_large_to_sample_needs_a_dataset(owner: Owner, folder: Folder) -> None:
    folder.write("planes.parquet", bytes(formats.LARGEST_SAMPLED + 1))
    with pytest.raises(UserError, match="too large to sample"):
        make(owner, "planes.parquet")
    make_dataset(owner, tail={"type": "string"})
    make(owner, "planes.parquet")
    assert [pipe.name for pipe in pipes.list_pipes(owner.tenant)] == ["planes"]


def test_a_task_of_a_pipe_that_was_deleted_sends_no_more(owner: Owner, folder: Folder) -> None:
    folder.write("planes.ndjson", lines({"tail": "N1"}))
    make(owner, "planes.ndjson")
    with fence.joined(fence.begin(pipes.find(owner.tenant, "planes"))) as fenced:
        passed = fenced(iter(range(fence.PIECE + 1)))
        assert next(passed) == 0
        pipes.delete(owner.tenant, "planes")
        with pytest.raises(Fenced, match="was deleted"):
            list(passed)


@pytest.mark.slow
def test_a_task_whose_connection_was_cut_sends_no_more(owner: Owner, folder: Folder) -> None:
    folder.write("planes.ndjson", lines({"tail": "N1"}))
    make(owner, "planes.ndjson")
    bring(owner)
    pipe = pipes.find(owner.tenant, "planes")
    with fence.joined(fence.begin(pipe)) as fenced:
        passed = fenced(iter(range(fence.PIECE + 1)))
        assert next(passed) == 0
        with postgres.transaction("pulse_pipeline") as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = %s",
                [f"pulse-{Lock.PIPE_ROWS}/{pipe.dataset_id}"],
            )
        with pytest.raises(Transient, match="was lost"):
            list(passed)
    with locks.session(Lock.PIPE_ROWS, pipe.dataset_id) as alone:
        assert alone is not None


def test_a_file_at_a_web_address_is_read_while_it_is_the_one_that_was_listed(owner: Owner) -> None:
    files = {"/x/planes.ndjson": ('"1"', lines({"tail": "N1"}))}
    requests = []

    def answer(method: str, path: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        requests.append((method, headers.get("If-Match"), headers.get("Authorization")))
        etag, body = files[path]
        if headers.get("If-Match", etag) != etag:
            return 412, {}, b""
        if (method, body[:1]) in (
            ("HEAD", b"!"),
            ("GET", b"\n"),
        ):  # changes after it was listed, or asked for
            files[path] = ('"3"', body[1:])
        return 200, {"ETag": etag}, body

    with (
        web(answer) as address,
        stored_source(owner.tenant, address.replace("//", "//me:se%40cret@") + "/x/"),
    ):
        make(owner, "planes.ndjson")
        bring(owner)
        assert sorted(latest(owner)) == ["N1"]
        assert requests[-2] == ("GET", '"1"', "Basic bWU6c2VAY3JldA==")
        assert bring(owner).rows == 0
        for change in (b"!", b"\n"):
            files["/x/planes.ndjson"] = ('"2"', change + lines({"tail": "N2"}))
            with pytest.raises(Exception, match="file changed since"):
                bring(owner)
        settle(owner)
        assert "N1" in latest(owner), "a run that failed deletes nothing"
        assert counts(owner)[0] == SyncState.FAILED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((302, {"Location": "http://169.254.169.254/"}, b""), "redirect"),
        (
            (200, {"ETag": '"2"', "Content-Length": "90", "X-Cut": "20"}, lines({"tail": "N2"}) * 6),
            "to the end",
        ),
        ((200, {"ETag": '"2"', "Connection": "close"}, lines({"tail": "N2"})), "do not state where they end"),
        ((200, {"ETag": '"2"', "Content-Encoding": "gzip"}, b"x"), "compressed"),
        ((403, {}, b""), "refuses the request"),
    ],
)
def test_a_web_server_that_does_not_give_the_file_deletes_nothing(
    owner: Owner, answer: tuple[int, dict[str, str], bytes], why: str
) -> None:
    now: list[Any] = [(200, {"ETag": '"1"'}, lines({"tail": "N1"}))]
    with web(lambda *_: now[0]) as address, stored_source(owner.tenant, address):
        make(owner, "planes.ndjson")
        bring(owner)
        now[0] = answer
        with pytest.raises(Exception, match=why):
            bring(owner)
    settle(owner)
    assert sorted(latest(owner)) == ["N1"]
