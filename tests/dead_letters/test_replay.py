"""Dead letters: listed, replayed through the same gate, discarded; and what a crash or a rival leaves."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import orjson
import pytest
from confluent_kafka import Message
from support.forked import forked
from support.here import ingest_here as ingest
from support.ingest import SCHEMA, Owner, event, make_owner
from support.topics import follow

from chaos import sent
from chaos.surroundings import superuser
from pulse_pipelines import dead_letters, registry
from pulse_pipelines.dead_letters import DeadLetterOutcome, Filter, Result, discard, replay, selection
from pulse_pipelines.dead_letters.letters import Cursor
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.domain.requests import LetterState
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_resources import kafka, postgres
from pulse_resources.errors import NotFound, Transient, UserError
from pulse_resources.settings import Settings

pytestmark = pytest.mark.usefixtures("stack")
ALL = Filter()


def listed(owner: Owner, where: Filter = ALL, **how: Any) -> list[str]:
    return [letter.letter_id for letter in dead_letters.list_dead_letters(owner.tenant, where, **how).letters]


def outcomes(result: Result) -> dict[str, str]:
    return {verdict.letter_id: verdict.outcome.value for verdict in result.verdicts}


def balanced(owner: Owner) -> tuple[int, int, int]:
    """Landed, duplicates and dead letters, once they are proven to account for every offset."""
    report = reconcile_tenant(owner.tenant)
    assert report.balanced, report.problems
    return report.landed, report.duplicates, report.dead_letters


def messages(owner: Owner) -> list[Message]:
    """Everything on the tenant's topic, by partition and offset."""
    return [message for _, message in sorted(sent.messages(owner.tenant.topic), key=lambda entry: entry[0])]


def add_dataset(owner: Owner, slug: str, schema: dict[str, Any] = SCHEMA) -> None:
    uri = registry.publish_schema(owner.tenant, slug, orjson.dumps(schema).decode()).schema_uri
    registry.create_dataset(owner.tenant, slug, uri)


LENIENT = SCHEMA | {"required": []}


# what there is ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def letters(stack: Settings) -> Owner:
    """Offsets 0 to 6 of partition 0 are dead letters, set aside in two batches."""
    owner = make_owner()
    owner.send(b"not json", event("a", dataset="late"), event("b", count="x"), event("c", count="x"))
    ingest(owner)
    owner.send(event("d", dataset="late"), b"\xff", event("e", signup_at="soon"), event("fine"))
    ingest(owner)
    return owner


def test_dead_letters_are_listed_latest_first(letters: Owner) -> None:
    page = dead_letters.list_dead_letters(letters.tenant)
    assert [letter.letter_id for letter in page.letters] == [f"0-{n}" for n in range(6, -1, -1)]
    assert page.next is None
    first = page.letters[-1]
    assert (first.reason, first.size, first.resolution) == ("undecodable", 8, None)
    assert first.received_at <= first.settled_at
    assert page.letters[3].pointer == "/data/count"


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
def test_pages_cover_each_letter_once(letters: Owner, limit: int) -> None:
    letter_ids: list[str] = []
    after = None
    while True:
        page = dead_letters.list_dead_letters(letters.tenant, limit=limit, after=after)
        assert 0 < len(page.letters) <= limit
        letter_ids += [letter.letter_id for letter in page.letters]
        if (after := page.next) is None:
            break
    assert letter_ids == [f"0-{n}" for n in range(6, -1, -1)]


def test_a_cursor_stands_while_letters_come_and_go() -> None:
    owner = make_owner()
    owner.send(b"0", b"1", b"2", b"3")
    ingest(owner)
    page = dead_letters.list_dead_letters(owner.tenant, limit=2)
    owner.send(b"4")
    ingest(owner)
    discard(owner.tenant, ["0-2"])
    assert listed(owner, after=page.next) == ["0-1", "0-0"]
    assert listed(owner) == ["0-4", "0-3", "0-1", "0-0"]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (Filter(dataset="late"), [4, 1]),
        (Filter(dataset="nobody's"), []),
        (Filter(reason=Reason.UNDECODABLE), [5, 0]),
        (Filter("orders", Reason.SCHEMA_VIOLATION), [3, 2]),
        (Filter(since=datetime.now(UTC) - timedelta(days=1)), [6, 5, 4, 3, 2, 1, 0]),
        (Filter(since=datetime.now(UTC) + timedelta(days=1)), []),
        (Filter(until=datetime.now(UTC) - timedelta(days=1)), []),
    ],
    ids=["dataset", "foreign dataset", "reason", "both", "since", "since later", "until earlier"],
)
def test_filters(letters: Owner, where: Filter, expected: list[int]) -> None:
    assert listed(letters, where) == [f"0-{n}" for n in expected]
    assert sum(entry.count for entry in dead_letters.summary(letters.tenant, where)) == len(expected)


def test_a_time_divides_the_letters(letters: Owner) -> None:
    times = {
        letter.letter_id: letter.settled_at
        for letter in dead_letters.list_dead_letters(letters.tenant).letters
    }
    assert listed(letters, Filter(since=times["0-4"])) == ["0-6", "0-5", "0-4"]
    assert listed(letters, Filter(until=times["0-4"])) == ["0-3", "0-2", "0-1", "0-0"]


def test_reasons_are_counted(letters: Owner) -> None:
    summary = dead_letters.summary(letters.tenant)
    counts = {"schema_violation": 2, "undecodable": 2, "unknown_dataset": 2, "unrepresentable": 1}
    assert {entry.reason: entry.count for entry in summary} == counts
    assert all(entry.oldest <= entry.newest for entry in summary)
    assert dead_letters.summary(letters.tenant, state=LetterState.REPLAYED) == ()


def test_a_dead_letter_is_read_with_its_bytes(letters: Owner) -> None:
    opened = dead_letters.find_dead_letter(letters.tenant, "0-5")
    assert (opened.letter.offset, opened.payload) == (5, b"\xff")


@pytest.mark.parametrize(
    "name", ["", "0", "0-", "0-7", "1-0", "0-5 ", "-1-5", "0-5\n", "\u0660-\u0665", "0-" + "9" * 30]
)
def test_an_unknown_id_names_no_letter(letters: Owner, name: str) -> None:
    with pytest.raises(NotFound):
        dead_letters.find_dead_letter(letters.tenant, name)
    assert outcomes(replay(letters.tenant, [name])) == {name: "not_found"}
    assert outcomes(discard(letters.tenant, [name])) == {name: "not_found"}


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "!", "e30=", str(Cursor("now")), str(Cursor("2026-01-01")), "WyIyMDI2IiwxLDJd", "é",
     str(Cursor("2026-01-01T00:00:00Z", 2**31)), str(Cursor("2026-01-01T00:00:00Z", 0, 2**63))],
)  # fmt: skip
def test_a_bad_cursor_is_the_callers_mistake(letters: Owner, cursor: str) -> None:
    with pytest.raises(UserError):
        dead_letters.list_dead_letters(letters.tenant, after=cursor)
    with pytest.raises(UserError):
        replay(letters.tenant, ALL, after=cursor, dry_run=True)


def test_bad_filters_are_the_callers_mistake(letters: Owner) -> None:
    for bad in ({"dataset": "a\0"}, {"dataset": "\ud800"}, {"since": datetime(2026, 1, 1)}):
        with pytest.raises(UserError):
            Filter(**bad)
    for limit in (0, -1, 1_001):
        with pytest.raises(UserError):
            dead_letters.list_dead_letters(letters.tenant, limit=limit)


def test_another_tenant_sees_and_changes_nothing(letters: Owner) -> None:
    other = make_owner()
    assert listed(other, state=LetterState.ALL) == []
    assert dead_letters.summary(other.tenant) == ()
    with pytest.raises(NotFound):
        dead_letters.find_dead_letter(other.tenant, "0-0")
    assert outcomes(replay(other.tenant, ["0-1"])) == {"0-1": "not_found"}
    assert replay(other.tenant, ALL).total == discard(other.tenant, ALL).total == 0
    assert len(listed(letters)) == 7


# replay ----------------------------------------------------------------------------------------


def test_a_dry_run_reports_outcomes_and_publishes_nothing() -> None:
    owner = make_owner()
    owner.send(event("a", dataset="late"), event("a", dataset="late"), b"{", event("b", dataset="never"))
    ingest(owner)
    add_dataset(owner, "late")
    result = replay(owner.tenant, ALL, dry_run=True)
    expected = {"0-0": "would_land", "0-1": "duplicate", "0-2": "rejected", "0-3": "rejected"}
    assert outcomes(result) == expected
    assert result.counts == {
        DeadLetterOutcome.WOULD_LAND: 1,
        DeadLetterOutcome.DUPLICATE: 1,
        DeadLetterOutcome.REJECTED: 2,
    }
    assert not result.complete
    unknown = result.verdicts[3]
    assert (unknown.reason, unknown.pointer, unknown.event_id) == ("unknown_dataset", "/dataset", "b")
    assert len(messages(owner)) == 4
    assert len(listed(owner)) == 4


def test_a_replay_after_the_fix_lands_exactly_once() -> None:
    owner = make_owner()
    payload = event("a", dataset="late", count=7, text="é\u2028").replace(b", ", b",\n ")
    owner.send(payload, event("b"))
    ingest(owner)
    add_dataset(owner, "late")
    assert outcomes(replay(owner.tenant, ["0-0"])) == {"0-0": "published"}
    published = next(m for m in messages(owner) if m.headers())
    assert (published.key(), published.value()) == (b"a", payload), "the same bytes"
    assert published.headers() == [("pulse.replay-of", b"0/0"), ("pulse.counted", b"")]
    assert balanced(owner) == (1, 0, 1), "before it is drained, too"
    ingest(owner)
    (row,) = owner.rows("late")
    assert (row["id"], row["count"]) == ("a", 7)
    assert balanced(owner) == (2, 0, 1), "the dead letter still accounts for its offset"
    assert listed(owner) == []
    (letter,) = dead_letters.list_dead_letters(owner.tenant, state=LetterState.REPLAYED).letters
    assert letter.resolved_at is not None
    assert outcomes(replay(owner.tenant, ["0-0"])) == {"0-0": "already_replayed"}
    assert outcomes(discard(owner.tenant, ["0-0"])) == {"0-0": "already_replayed"}
    assert replay(owner.tenant, ALL).total == 0
    assert len(messages(owner)) == 3


def test_a_replayed_event_that_landed_meanwhile_is_a_duplicate() -> None:
    owner = late(1)
    owner.send(event("e0", dataset="late", count=1))
    ingest(owner)
    assert outcomes(replay(owner.tenant, ALL)) == {"0-0": "duplicate"}
    assert len(messages(owner)) == 2
    assert listed(owner, state=LetterState.REPLAYED) == ["0-0"]
    assert balanced(owner) == (1, 0, 1)


@contextmanager
def without_table(owner: Owner) -> Iterator[None]:
    """The dataset's table is not in the catalog."""
    mine = [owner.tenant.namespace]
    with superuser() as connection:
        table = "iceberg_catalog.iceberg_tables"
        connection.execute(
            f"CREATE TEMP TABLE kept AS SELECT * FROM {table} WHERE table_namespace = %s", mine
        )
        connection.execute(f"DELETE FROM {table} WHERE table_namespace = %s", mine)
        yield
        connection.execute(f"INSERT INTO {table} SELECT * FROM kept")


def test_events_that_failed_to_land_land_once_their_table_is_restored() -> None:
    owner = make_owner()
    with without_table(owner):
        owner.send(event("a"), event("b"))
        ingest(owner)
        result = replay(owner.tenant, ALL)
        assert set(outcomes(result).values()) == {"rejected"}
        assert {verdict.reason for verdict in result.verdicts} == {"landing_failed"}
        assert len(messages(owner)) == 2
    assert set(outcomes(replay(owner.tenant, ALL)).values()) == {"published"}
    ingest(owner)
    assert sorted(row["id"] for row in owner.rows()) == ["a", "b"]
    assert balanced(owner) == (2, 0, 2)


def test_a_replay_meets_the_columns_too() -> None:
    owner = make_owner()
    owner.send(event("soon", signup_at="soon"), event("old").replace(b"2026-", b"0000-"))
    ingest(owner)
    verdicts = replay(owner.tenant, ALL).verdicts
    assert [(v.outcome.value, v.reason) for v in verdicts] == [
        ("rejected", "unrepresentable"),
        ("rejected", "timestamp_out_of_range"),
    ]
    assert len(listed(owner)) == 2


def test_large_and_broken_ones_stay_rejected() -> None:
    owner = make_owner()
    owner.send(event("large", other="x" * 262_144), b"", b"[" * 1_000, event("n", count=2**63), b"[1]")
    ingest(owner)
    reasons = {
        verdict.letter_id: verdict.reason for verdict in replay(owner.tenant, ALL, schema_version=1).verdicts
    }
    assert list(reasons.values()) == [
        "oversize", "undecodable", "too_deep", "integer_out_of_range", "invalid_envelope",
    ]  # fmt: skip
    assert dead_letters.find_dead_letter(owner.tenant, "0-0").letter.size > 262_144


def test_a_named_schema_version_is_written_into_the_event() -> None:
    owner = make_owner()
    plain = orjson.loads(event("a", other=[1.5, "é", None, 2**53 + 1]))
    del plain["data"]["country"]
    owner.send(orjson.dumps(plain | {"schema_version": 1}), event("s", count="x"))
    ingest(owner)
    version = follow(owner, LENIENT)
    assert outcomes(replay(owner.tenant, ["0-0"])) == {"0-0": "rejected"}, "the event says version 1"
    (unknown,) = replay(owner.tenant, ["0-0"], schema_version=9).verdicts
    assert (unknown.reason, unknown.pointer) == ("unknown_schema_version", "/schema_version")
    result = replay(owner.tenant, ALL, schema_version=version)
    assert outcomes(result) == {"0-0": "published", "0-1": "rejected"}
    published = next(m for m in messages(owner) if m.headers())
    assert orjson.loads(published.value()) == plain | {"schema_version": version}
    ingest(owner)
    (row,) = owner.rows()
    assert (row["id"], row["country"], row["schema_version"]) == ("a", None, version)
    assert balanced(owner) == (1, 0, 2)


def test_an_integer_that_json_decoders_bend_is_not_bent_by_a_new_version() -> None:
    owner = make_owner()
    owner.send(event("a", other=2**64 + 1))
    ingest(owner)
    (verdict,) = replay(owner.tenant, ALL, schema_version=1).verdicts
    assert (verdict.outcome, verdict.reason) == (DeadLetterOutcome.REJECTED, "integer_out_of_range")


def late(count: int) -> Owner:
    """An owner with so many dead letters that can land."""
    owner = make_owner()
    owner.send(*(event(f"e{n}", dataset="late") for n in range(count)))
    ingest(owner)
    add_dataset(owner, "late")
    return owner


def test_a_replay_with_limit_and_cursor_covers_all_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "PAGE", 2)
    owner = late(7)
    owner.send(b"no json")
    ingest(owner)
    replayed: list[str] = []
    after = None
    for expected in (3, 3, 2):
        result = replay(owner.tenant, ALL, dry_run=True, limit=3, after=after)
        assert result.total == expected
        replayed += outcomes(result)
        after = result.next
    assert after is None
    assert replayed == [f"0-{n}" for n in range(8)], "the oldest first"
    assert replay(owner.tenant, ALL, limit=0).total == 0
    steps: list[int] = []
    assert replay(owner.tenant, ALL, limit=3, progress=steps.append).counts == {
        DeadLetterOutcome.PUBLISHED: 3
    }
    assert steps == [2, 3]
    assert discard(owner.tenant, ALL, limit=1, dry_run=True).next is not None
    assert len(listed(owner)) == 5


def test_replays_at_once_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "PAGE", 5)
    owner = late(40)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: replay(owner.tenant, ALL), range(4)))
    assert sum(result.counts.get(DeadLetterOutcome.PUBLISHED, 0) for result in results) == 40
    assert listed(owner) == []
    assert len(messages(owner)) == 80
    ingest(owner)
    assert balanced(owner) == (40, 0, 40)


def test_replays_of_the_same_ids_at_once_publish_once() -> None:
    owner = late(20)
    names = [f"0-{n}" for n in range(20)]
    with ThreadPoolExecutor(3) as pool:
        results = list(
            pool.map(lambda chosen: replay(owner.tenant, chosen), (names, names[::-1], [*names, *names]))
        )
    assert all(result.total == 20 for result in results)
    assert sum(result.counts.get(DeadLetterOutcome.PUBLISHED, 0) for result in results) == 20
    assert sum(result.counts.get(DeadLetterOutcome.ALREADY_REPLAYED, 0) for result in results) == 40
    assert len(messages(owner)) == 40


def replay_all(tenant: Tenant) -> None:
    dead_letters.replay(tenant, dead_letters.Filter())


def test_a_replay_killed_between_publish_and_mark_is_repeated_without_harm() -> None:
    owner = late(3)
    forked(replay_all, owner.tenant, PULSE_FAIL_POINT="replay.before_mark").killed()
    assert len(messages(owner)) == 6, "published"
    assert len(listed(owner)) == 3, "and not marked"
    assert replay(owner.tenant, ALL).counts == {DeadLetterOutcome.PUBLISHED: 3}, (
        "again, for no batch has claimed them"
    )
    ingest(owner)
    assert len(owner.rows("late")) == 3
    assert balanced(owner) == (3, 3, 3)


@pytest.mark.slow
def test_a_replay_killed_and_ingested_is_repeated_as_duplicates() -> None:
    owner = late(2)
    forked(replay_all, owner.tenant, PULSE_FAIL_POINT="replay.before_mark").killed()
    ingest(owner)
    assert replay(owner.tenant, ALL).counts == {DeadLetterOutcome.DUPLICATE: 2}
    assert listed(owner) == []
    assert balanced(owner) == (2, 0, 2)


def test_a_letter_without_an_acknowledgement_of_the_broker_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner = late(2)

    class Deaf:
        def produce(self, *_: object, **__: object) -> None: ...

        def poll(self, _: float) -> int:
            return 0

        def __len__(self) -> int:
            return 2

    monkeypatch.setattr(kafka, "producer", Deaf)
    monkeypatch.setattr(import_module("pulse_pipelines.dead_letters.replay"), "FLUSH_S", 0.1)
    with pytest.raises(Transient, match="did not acknowledge"):
        replay(owner.tenant, ALL)
    assert len(listed(owner)) == 2


# discard ---------------------------------------------------------------------------------------


def test_discarded_letters_stay_but_are_not_open(stack: Settings) -> None:
    owner = make_owner()
    owner.send(b"0", event("a", dataset="late"), b"2", event("ok"))
    ingest(owner)
    assert discard(owner.tenant, Filter(reason=Reason.UNDECODABLE), dry_run=True).counts == {}
    discarded = discard(owner.tenant, ["0-0"], dry_run=True)
    assert (outcomes(discarded), len(listed(owner))) == ({"0-0": "discarded"}, 3)
    assert outcomes(discard(owner.tenant, Filter(reason=Reason.INVALID_ENVELOPE))) == {
        "0-0": "discarded",
        "0-2": "discarded",
    }
    assert listed(owner) == ["0-1"]
    assert listed(owner, state=LetterState.DISCARDED) == ["0-2", "0-0"]
    assert outcomes(replay(owner.tenant, ["0-0"])) == {"0-0": "already_discarded"}
    assert dead_letters.find_dead_letter(owner.tenant, "0-0").payload == b"0"
    assert balanced(owner) == (1, 0, 3)


def test_the_api_role_can_resolve_a_letter_and_nothing_else(letters: Owner) -> None:
    import psycopg

    for change in ("SET reason = 'x'", "SET payload = ''", "SET settled_at = now()"):
        with (
            pytest.raises(psycopg.errors.InsufficientPrivilege),
            postgres.tenant_transaction("pulse_api", letters.tenant.tenant_id) as connection,
        ):
            connection.execute(f"UPDATE dead_letters {change}")
