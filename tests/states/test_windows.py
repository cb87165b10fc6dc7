"""Windows of states: counts, sums and sessions of a plain model, whatever comes late, again or never."""

import json
import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given, strategies as st
from support import maintenance as upkeep
from support.backfill import move, rebuilt
from support.faults import AtPoint
from support.ingest import (
    Owner,
    event,
    ingest,
    make_owner,
    next_attempt,
    plan_batch,
    run_batch,
    start_attempt,
)

from chaos import states
from chaos.waiting import PATIENCE_S
from pulse_pipelines import registry
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.domain.windows import LENGTHS, RETENTION_MINUTES, Windows, minute
from pulse_pipelines.erasure import run as erasure
from pulse_pipelines.monitoring.checks import inspection
from pulse_pipelines.states import (
    declared_states,
    declared_windows as declared,
    state_build,
    table_rows,
    window_buckets as tables,
    window_build,
)
from pulse_pipelines.states.state_keys import HOLD
from pulse_pipelines.validation import limits
from pulse_resources import postgres
from pulse_resources.errors import Conflict, QuotaExceeded, UserError
from pulse_resources.settings import Settings, load_settings

SUMS = ("amount", "count")
GAP_S = 600
KEYS = ("DE", "FR")
START = datetime(2026, 11, 19, 10, tzinfo=UTC)
Shown = dict[str, Any]


def at_minute(event_id: str, minutes: float, **data: Any) -> bytes:
    """An event of so many minutes after START."""
    document = json.loads(event(event_id, **data))
    document["timestamp"] = (START + timedelta(minutes=minutes)).isoformat()
    return json.dumps(document).encode()


def declare(owner: Owner, *, build: bool = True, **how: Any) -> None:
    definition = Windows(**({"sums": SUMS, "session_gap_s": GAP_S} | how))
    declared_states.declare(owner.tenant, "orders", "country", windows=definition)
    if build:
        state_build.build(owner.tenant, "orders")


def model(table: list[Shown], key: str, as_of: datetime) -> Shown:
    """What rows give, in plain Python."""
    return states.model(table, states.Declared("country", Windows(SUMS, GAP_S)), key, as_of)


def windows(owner: Owner, key: str, as_of: datetime) -> Shown:
    """What is read."""
    counted = declared_states.newest(owner.tenant, "orders", key, as_of).windows
    assert counted is not None
    assert counted.complete, "nothing is missing"
    return states.shown(counted)


def agree(owner: Owner) -> None:
    """Windows are those of the model, as of several moments, and the check finds nothing."""
    rows = owner.rows()
    newest = max(row["timestamp"] for row in rows)
    keys = {row["country"] for row in rows}
    for as_of in (
        newest,
        newest - timedelta(minutes=50),
        newest + timedelta(hours=3),
        newest - timedelta(hours=2),
    ):
        for key in keys:
            assert windows(owner, key, as_of) == model(rows, key, as_of), (key, as_of)
    assert inspection.run("state_equals_table", owner.tenant, "orders").problems == []
    counted = declared_states.find(owner.tenant, "orders").windows
    assert counted is not None
    assert counted.complete
    with postgres.tenant_transaction("pulse_api", owner.tenant.tenant_id) as connection:
        assert connection.execute("SELECT count(*) FROM event_window_buckets").fetchone() == (
            counted.buckets,
        )


EVENT = st.builds(
    lambda number, minutes, second, key, amount, count: at_minute(
        f"e-{number}", minutes + second / 60, country=KEYS[key], amount=amount, count=count
    ),
    st.integers(0, 60),
    st.sampled_from([0, 1, 2, 9, 20, 31, 300, 1_300, 1_499, 1_500, 1_501, 1_700]),
    st.sampled_from([0, 1, 59.999]),
    st.integers(0, 1),
    st.sampled_from([0.1, 0.2, 7.5, -3, 1e-7, 1e20]),
    st.integers(-(2**53), 2**53),
)
KILLED = (None, None, "event_windows.after_merge", "settle.before_commit", "settle.after_commit")
STEP = st.one_of(
    st.tuples(st.just("batch"), st.lists(EVENT, min_size=1, max_size=12), st.sampled_from(KILLED)),
    st.tuples(st.just("batch"), st.lists(EVENT, min_size=1, max_size=12), st.just(None)),
    st.sampled_from([("erase",), ("declare",), ("backfill",), ("widen",)]),
)


BATCH = st.lists(EVENT, min_size=1, max_size=12)
DEADLY = st.tuples(st.just("batch"), BATCH, st.sampled_from([point for point in KILLED if point]))


@hypothesis.settings(
    max_examples=1, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None
)
@given(first=STEP, second=DEADLY)
def test_any_sequence_gives_the_windows_of_the_model(stack: Settings, first: Any, second: Any) -> None:
    walk([first, second, ("erase",)])


@pytest.mark.slow
@hypothesis.settings(
    max_examples=25, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None
)
@given(steps=st.lists(STEP, min_size=4, max_size=9))
def test_many_sequences_give_the_windows_of_the_model(stack: Settings, steps: list[Any]) -> None:
    walk(steps)


def walk(steps: list[Any]) -> None:
    owner = make_owner()
    owner.send(at_minute("first", 1_000, country="DE", amount=1))
    ingest(owner)
    declared_states.declare(
        owner.tenant, "orders", "country", windows=Windows(SUMS) if len(steps) % 2 else None
    )
    for number, (kind, *how) in enumerate(steps):
        if kind == "batch":
            sent, point = how
            owner.send(*sent, at_minute(f"fresh-{number}", 5))  # so that there is something to land
            batch, attempt = plan_batch([owner]), 1
            if point is not None and (number or len(steps) % 2):
                start_attempt(batch, PULSE_FAIL_POINT=point).killed()
                attempt = next_attempt(batch)
            run_batch(batch, attempt)
        elif kind == "erase":
            erasure.erase(owner.tenant, "orders", "amount=7.5")
        elif kind == "backfill":
            rebuilt(owner)
        elif kind == "widen":
            declare(owner, sums=SUMS[:1])
        if kind in ("declare", "widen") or not number:
            declare(owner)
        agree(owner)


@pytest.mark.slow
def test_a_batch_on_its_way_when_windows_are_declared_is_counted_once(owner: Owner, at: AtPoint) -> None:
    declared_states.declare(owner.tenant, "orders", "country")
    owner.send(at_minute("a", 1))
    batch = plan_batch([owner])
    at("settle.before_swap", lambda: declare(owner))
    run_batch(batch, raise_on_error=False)
    assert owner.rows() == [], "it was written without windows"
    run_batch(batch, next_attempt(batch))
    agree(owner)


@pytest.mark.slow
def test_events_that_settle_during_a_build_are_counted_once(
    owner: Owner, at: AtPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_rows, "PIECE", 1)
    declare(owner, build=False)

    def batch(name: str) -> None:
        owner.send(at_minute(name, 2, count=5), at_minute(f"old-{name}", -60, amount=1.5))
        ingest(owner)

    batch("between declaration and build")
    at("window_build.began", lambda: batch("d"))
    at("window_build.added", lambda: batch("e"))
    declare(owner)
    agree(owner)


@pytest.mark.slow
def test_a_late_event_joins_two_sessions(owner: Owner) -> None:
    declare(owner)
    owner.send(at_minute("a", 0), at_minute("b", 10), at_minute("c", 20.1), at_minute("d", 20, country="FR"))
    ingest(owner)
    agree(owner)
    assert sessions(owner, 30.1, 30.2) == [(20.1, 20.1, 1, True), (20.1, 20.1, 1, False)]
    assert sessions(owner, 19) == [(0, 10, 2, True)]
    owner.send(at_minute("late", 15))
    ingest(owner)
    agree(owner)
    assert sessions(owner, 30) == [(0, 20.1, 4, True)]


def sessions(owner: Owner, *minutes: float) -> list[tuple[float, float, int, bool]]:
    """Of DE as of minutes after START: its first and last minute, its events, and whether it is open."""
    shown_sessions = []
    for at in minutes:
        shown = declared_states.newest(owner.tenant, "orders", "DE", START + timedelta(minutes=at)).windows
        assert shown is not None
        assert shown.session is not None
        assert shown.session.complete
        moments = map(datetime.fromisoformat, (shown.session.first, shown.session.last))
        first, last = ((moment - START) / timedelta(minutes=1) for moment in moments)
        shown_sessions.append((first, last, shown.session.events, shown.session.open))
    return shown_sessions


def test_a_build_does_not_wait_for_a_batch_that_holds_the_state(owner: Owner) -> None:
    """A batch holds the state, then its windows: a build that holds the windows must not need the state."""
    owner.send(at_minute("a", 1))
    ingest(owner)
    declare(owner, build=False)
    with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as batch:
        assert batch.execute(HOLD, [[registry.find_dataset(owner.tenant, "orders").dataset_id]]).fetchall()
        builder = threading.Thread(target=window_build.build, args=(owner.tenant, "orders"), daemon=True)
        builder.start()
        builder.join(PATIENCE_S)
        assert not builder.is_alive()
    state_build.build(owner.tenant, "orders")
    agree(owner)


def test_an_interrupted_build_continues_and_two_builds_count_once(
    owner: Owner, at: AtPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_rows, "PIECE", 1)
    owner.send(*(at_minute(f"e-{number}", number, amount=number) for number in range(5)))
    ingest(owner)
    owner.send(at_minute("before", -1_440, amount=1))
    ingest(owner)
    declare(owner, build=False)
    added = []

    def crash() -> None:
        added.append(None)
        if len(added) == 3:
            raise KeyboardInterrupt

    at("window_build.added", crash, always=True)
    with pytest.raises(KeyboardInterrupt):
        state_build.build(owner.tenant, "orders")
    counted = declared_states.find(owner.tenant, "orders").windows
    assert counted is not None
    assert (counted.buckets, counted.complete) == (3, False)
    shown = declared_states.newest(owner.tenant, "orders", "DE", START + timedelta(minutes=9)).windows
    assert shown is not None
    assert not shown.complete
    at("window_build.read", lambda: window_build.build(owner.tenant, "orders"))
    window_build.build(owner.tenant, "orders")
    assert len(added) == 6, "none twice"
    agree(owner)


@pytest.mark.slow
def test_a_build_overtaken_by_an_erasure_starts_again(owner: Owner, at: AtPoint) -> None:
    owner.send(at_minute("a", 1, amount=1), at_minute("b", 2, country="FR", amount=7.5))
    ingest(owner)
    at("window_build.read", lambda: erasure.erase(owner.tenant, "orders", "country=FR"))
    declare(owner)
    agree(owner)


@pytest.mark.slow
def test_erasing_the_newest_event_restores_minutes_that_were_too_old(owner: Owner) -> None:
    declare(owner)
    owner.send(
        at_minute("a", 0, amount=1),
        at_minute("b", RETENTION_MINUTES, amount=7.5),
        at_minute("c", 9, amount=2),
    )
    ingest(owner)
    assert buckets(owner) == [(RETENTION_MINUTES, 1), (9, 1)][::-1]
    agree(owner)
    erasure.erase(owner.tenant, "orders", "amount=7.5")
    assert buckets(owner) == [(0, 1), (9, 1)]
    agree(owner)
    owner.send(at_minute("d", 3 * RETENTION_MINUTES, amount=3))
    ingest(owner)
    with postgres.tenant_transaction("pulse_api", owner.tenant.tenant_id) as connection:
        rounds = connection.execute("SELECT round FROM event_windows").fetchone()
        erasure.erase(owner.tenant, "orders", "amount=1")
        assert connection.execute("SELECT round FROM event_windows").fetchone() == rounds, "too old for them"
    agree(owner)


def buckets(owner: Owner) -> list[tuple[int, int]]:
    """Minutes after START, and their events."""
    query = "SELECT minute - %s, events FROM event_window_buckets ORDER BY minute"
    with postgres.tenant_transaction("pulse_api", owner.tenant.tenant_id) as connection:
        return connection.execute(query, [minute(START)]).fetchall()


def test_events_of_a_backfill_are_counted_after_a_crash_before_the_build(owner: Owner, at: AtPoint) -> None:
    declare(owner, sums=("amount",))
    owner.send(event("a", country="DE", count=1, amount=0.1), event("b", country="DE", count=1.5, amount=0.2))
    ingest(owner)
    move(owner, count={"type": "number"})

    def crash() -> None:
        raise KeyboardInterrupt

    at("rewrite.after_commit", crash)
    with pytest.raises(KeyboardInterrupt):
        rebuilt(owner)
    counted = declared_states.find(owner.tenant, "orders").windows
    assert counted is not None
    assert not counted.complete
    assert [run.outcome for run in upkeep.done(owner, Task.WINDOWS)] == ["done"]
    newest = declared_states.newest(owner.tenant, "orders", "DE", START).windows
    assert newest is not None
    assert newest.windows["5m"] is not None
    assert (newest.windows["5m"].events, newest.windows["5m"].sums) == (2, {"amount": Decimal("0.3")})
    assert rebuilt(owner).rows == 2
    assert inspection.run("state_equals_table", owner.tenant, "orders").problems == []
    assert buckets(owner) == [(0, 2)]


def test_an_event_that_claims_to_be_of_the_future_moves_no_window(owner: Owner) -> None:
    declare(owner)
    now = datetime.now(UTC)
    ahead = (now - START) / timedelta(minutes=1)
    owner.send(at_minute("now", ahead), at_minute("ahead", ahead + 30), at_minute("future", ahead + 1_000))
    ingest(owner)
    agree(owner)
    shown = declared_states.newest(owner.tenant, "orders", "DE").windows
    assert shown is not None
    assert [window and window.events for window in shown.windows.values()] == [1, 1, 1]


def test_a_full_state_drops_the_oldest_minutes_and_keeps_exact_counts(owner: Owner) -> None:
    declare(owner, max_buckets=4)
    numbers = (0, 1, 100, 1_200, 1_300)
    owner.send(*(at_minute(f"e-{number}", number, amount=1) for number in numbers))
    ingest(owner)
    assert [at for at, _ in buckets(owner)] == [100, 1_200, 1_300]
    assert counts_at(owner, 1_300) == {"5m": 1, "1h": 1, "24h": None}
    agree_but_for_room(owner)
    owner.send(at_minute("late", 0), at_minute("again", 1_300), at_minute("new", 1_301))
    ingest(owner)
    assert buckets(owner) == [(100, 1), (1_200, 1), (1_300, 2), (1_301, 1)]
    agree_but_for_room(owner)
    (full,) = (state for state in declared_states.full() if state.tenant == owner.tenant.slug)
    assert (full.missed_keys, full.minutes) == (0, 1_300)


@pytest.mark.slow
def test_windows_are_complete_again_once_a_limit_is_raised(owner: Owner) -> None:
    declare(owner, max_buckets=4)
    owner.send(*(at_minute(f"at-once-{key}", 1_400, country=key) for key in ("DE", *"abcd")))
    ingest(owner)
    assert buckets(owner) == []
    assert counts_at(owner, 1_400) == {"5m": None, "1h": None, "24h": None}
    owner.send(at_minute("after", 1_400 + RETENTION_MINUTES))
    ingest(owner)
    assert counts_at(owner, 1_400 + RETENTION_MINUTES) == {"5m": 1, "1h": 1, "24h": 1}
    assert [state for state in declared_states.full() if state.tenant == owner.tenant.slug] == []
    owner.send(
        at_minute("one", 1_401 + RETENTION_MINUTES),
        at_minute("two", 1_402 + RETENTION_MINUTES),
        at_minute("three", 1_403 + RETENTION_MINUTES),
    )
    owner.send(at_minute("four", 1_404 + RETENTION_MINUTES))
    ingest(owner)
    assert counts_at(owner, 1_404 + RETENTION_MINUTES) == {"5m": None, "1h": None, "24h": None}
    declare(owner, max_buckets=50)
    agree(owner)


def counts_at(owner: Owner, minutes: int) -> dict[str, int | None]:
    """Counted events as of so many minutes after START."""
    counted = declared_states.newest(owner.tenant, "orders", "DE", START + timedelta(minutes=minutes)).windows
    assert counted is not None
    return {name: None if window is None else window.events for name, window in counted.windows.items()}


def agree_but_for_room(owner: Owner) -> None:
    """What is shown is what the model has."""
    rows = owner.rows()
    as_of = max(row["timestamp"] for row in rows)
    shown, expected = windows(owner, "DE", as_of), model(rows, "DE", as_of)
    assert all(shown[name] in (None, expected[name]) for name in LENGTHS)
    assert shown["session"] == expected["session"]
    assert inspection.run("state_equals_table", owner.tenant, "orders").problems == []


def test_an_invalid_windows_declaration_is_refused(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    for sums in (("country",), ("active",), ("nobody",), ("address",)):
        with pytest.raises(UserError, match="only properties of the schema that are numbers"):
            declare(owner, sums=sums)
    for how in (
        {"session_gap_s": 59},
        {"session_gap_s": 86_401},
        {"max_buckets": 0},
        {"sums": ("count",) * 9},
    ):
        with pytest.raises(UserError):
            declare(owner, **how)
    monkeypatch.setattr(declared, "TENANT_BUCKETS", 10)
    declare(owner, max_buckets=10)
    with pytest.raises(QuotaExceeded):
        declare(owner, max_buckets=11)
    with pytest.raises(UserError, match="years"):
        declared_states.newest(owner.tenant, "orders", "DE", datetime.min.replace(tzinfo=UTC))


def test_a_newer_schema_in_which_a_sum_has_another_type_is_refused(owner: Owner) -> None:
    declare(owner)
    with pytest.raises(Conflict, match="another type to count"):
        move(owner, count={"type": "number"})
    declare(owner, sums=("amount",))
    move(owner, count={"type": "number"}, more={"type": "integer"})
    declare(owner, sums=("amount", "count", "more"))


@pytest.mark.slow
def test_windows_end_with_a_declaration_without_them(owner: Owner) -> None:
    declare(owner)
    owner.send(at_minute("a", 1))
    ingest(owner)
    batch = plan_in_flight(owner)
    declared_states.declare(owner.tenant, "orders", "country")
    run_batch(batch)
    assert declared_states.find(owner.tenant, "orders").windows is None
    assert declared_states.newest(owner.tenant, "orders", "DE").windows is None
    declare(owner)
    agree(owner)


def plan_in_flight(owner: Owner) -> str:
    owner.send(at_minute("b", 2))
    return plan_batch([owner])


def test_the_check_sees_wrong_windows(owner: Owner) -> None:
    declare(owner)
    owner.send(at_minute("a", 1, amount=0.5, count=1), at_minute("b", 2, amount=3))
    ingest(owner)
    agree(owner)
    for change in ("sums = '{0.6,1}'", "last_at = last_at + 1", "events = events + 1"):
        with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
            connection.execute(
                f"UPDATE event_window_buckets SET {change} WHERE minute = %s", [minute(START) + 1]
            )
        assert inspection.run("state_equals_table", owner.tenant, "orders").problems, change
        event_windows_anew(owner)
    agree(owner)
    with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
        connection.execute("DELETE FROM event_window_buckets WHERE minute = %s", [minute(START) + 1])
    assert inspection.run("state_equals_table", owner.tenant, "orders").problems


def event_windows_anew(owner: Owner) -> None:
    dataset = registry.find_dataset(owner.tenant, "orders")
    with postgres.tenant_transaction("pulse_api", owner.tenant.tenant_id) as connection:
        tables.restart(connection, dataset.dataset_id)
    window_build.build(owner.tenant, "orders")


def test_the_check_sees_all_rows_before_1970(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB leaves out files for a condition that begins within a day before 1970."""
    settings = load_settings()
    early = settings.ingest.model_copy(update={"earliest_timestamp": datetime(1, 1, 1, tzinfo=UTC)})
    monkeypatch.setattr(limits, "load_settings", lambda: settings.model_copy(update={"ingest": early}))
    newest = START.replace(year=1969)
    begin = newest - timedelta(minutes=RETENTION_MINUTES)
    declare(owner)
    for number, at in enumerate((begin + timedelta(minutes=5), newest)):
        body = json.loads(event(f"e{number}")) | {"timestamp": at.isoformat()}
        owner.send(json.dumps(body).encode())
    ingest(owner)
    assert len(owner.rows()) == 2
    agree(owner)
