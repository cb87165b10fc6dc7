"""States of datasets of events: as a plain model has them, whatever comes late, again, or not at all."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
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

from pulse_pipelines import registry
from pulse_pipelines.domain.quota import STATE_KEYS
from pulse_pipelines.erasure import run as erasure
from pulse_pipelines.monitoring.checks import inspection
from pulse_pipelines.moves import evolve
from pulse_pipelines.states import declared_states, state_build, state_keys as kept
from pulse_resources import postgres
from pulse_resources.errors import Conflict, QuotaExceeded, UserError

NAMES = ("DE", "FR", "é", "a/b", "NL", "", "x" * 600)
"""Values of the key; the last is too long for one."""


def sent_at(event_id: str, second: int, **data: Any) -> bytes:
    """An event of a second of the day."""
    document = json.loads(event(event_id, **data))
    document["timestamp"] = f"2026-11-19T10:{second // 60:02}:{second % 60:02}Z"
    return json.dumps(document).encode()


def declare(owner: Owner, by: str = "country", max_keys: int = STATE_KEYS) -> None:
    declared_states.declare(owner.tenant, "orders", by, max_keys)
    state_build.build(owner.tenant, "orders")


def state(owner: Owner) -> dict[str, tuple[str, str, str | None]]:
    _, entries = declared_states.page(owner.tenant, "orders", None, 1000)
    assert [entry.key for entry in entries] == sorted(entry.key for entry in entries)
    return {entry.key: (entry.timestamp, entry.event_id, entry.data) for entry in entries}


def model(owner: Owner, by: str = "country") -> dict[str, tuple[str, str]]:
    """The state that the rows of the table give, in plain Python."""
    newest: dict[str, tuple[Any, ...]] = {}
    for row in owner.rows():
        if row[by] is not None and len(str(row[by]).encode()) <= kept.KEY_BYTES:
            place = (row["timestamp"], row["_kafka_partition"], row["_offset"], row["id"])
            newest[str(row[by])] = max(newest.get(str(row[by]), place), place)
    return {key: (place[0].isoformat().replace("+00:00", "Z"), place[3]) for key, place in newest.items()}


def brief(owner: Owner) -> dict[str, tuple[str, str]]:
    return {key: entry[:2] for key, entry in state(owner).items()}


def sound(owner: Owner) -> bool:
    return not inspection.run("state_equals_table", owner.tenant, "orders").problems


def some_events(choose: np.random.Generator, count: int, ids: int) -> Iterable[bytes]:
    """Events of few keys and seconds, among them repeated, late and invalid ones."""
    for _ in range(count):
        name, second, number = (
            NAMES[choose.integers(len(NAMES))],
            int(choose.integers(90)),
            choose.integers(ids),
        )
        if choose.random() < 0.1:
            yield sent_at(f"e-{number}", second, country=7)
        else:
            yield sent_at(f"e-{number}", second, country=name, count=int(choose.integers(2**40)))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_the_state_is_that_of_a_plain_model(owner: Owner, seed: int) -> None:
    choose = np.random.default_rng(seed)
    owner.send(*some_events(choose, 40, 60))
    ingest(owner)
    declare(owner)
    assert brief(owner) == model(owner), "built from the table"
    for point in (None, "event_states.before_merge", "event_states.after_merge", "settle.after_commit"):
        owner.send(*some_events(choose, 40, 150))
        batch = plan_batch([owner])
        attempt = 1
        if point is not None:
            start_attempt(batch, PULSE_FAIL_POINT=point).killed()
            attempt = next_attempt(batch)
        run_batch(batch, attempt)
        assert brief(owner) == model(owner), point
    declared = declared_states.find(owner.tenant, "orders")
    assert (declared.keys, declared.left_out, declared.complete) == (len(state(owner)), 0, True)
    assert sound(owner)
    declared_states.drop(owner.tenant, "orders")
    declare(owner)
    assert brief(owner) == model(owner), "built anew"


def test_the_event_is_kept_as_it_was_sent(owner: Owner) -> None:
    declare(owner, "count")
    sent = {
        "country": "FR",
        "count": 5,
        "active": True,
        "signup_at": "2026-01-02T03:04:05+00:00",
        "more": [1],
    }
    owner.send(
        sent_at("a", 1, **sent),
        sent_at("b", 1, country="y" * 5000, count=-6),
        sent_at("c", 3, country="no count"),
    )
    ingest(owner)
    entries = state(owner)
    assert entries.keys() == {"5", "-6"}
    assert json.loads(str(entries["5"][2])) == sent
    assert entries["-6"][1:] == ("b", None), "too large"


def test_keys_beyond_the_room_are_left_out_and_counted(owner: Owner) -> None:
    declare(owner, max_keys=2)
    owner.send(*(sent_at(f"e{name}", 1, country=name) for name in "dacb"))
    ingest(owner)
    assert state(owner).keys() == {"a", "b"}
    owner.send(sent_at("again", 2, country="a"), sent_at("no", 2, country="d"))
    ingest(owner)
    assert brief(owner)["a"][1] == "again"
    declared = declared_states.find(owner.tenant, "orders")
    assert (declared.keys, declared.left_out) == (2, 3)
    (full,) = (candidate for candidate in declared_states.full() if candidate.tenant == owner.tenant.slug)
    assert (full.dataset, full.missed_keys) == ("orders", 3)
    declare(owner, max_keys=4)
    assert brief(owner) == model(owner), "there is room now"
    assert sound(owner)


def test_a_batch_on_its_way_when_a_state_is_declared_misses_nothing(owner: Owner, at: AtPoint) -> None:
    owner.send(sent_at("a", 1))
    batch = plan_batch([owner])
    at("settle.before_swap", lambda: declare(owner))
    run_batch(batch, raise_on_error=False)
    assert owner.rows() == [], "it was written without the state"
    run_batch(batch, next_attempt(batch))
    assert brief(owner) == model(owner) != {}


def test_a_batch_that_settles_during_the_declaration_is_waited_for(owner: Owner) -> None:
    owner.send(sent_at("a", 1))
    ingest(owner)
    declare(owner)
    owner.send(sent_at("b", 2))
    batch = plan_batch([owner])
    declared_states.drop(owner.tenant, "orders")
    declare(owner)
    run_batch(batch)
    assert brief(owner) == model(owner)


def test_a_dataset_without_a_state_brings_none(owner: Owner) -> None:
    other = make_owner()
    declare(other)
    owner.send(sent_at("a", 1))
    ingest(owner)
    with pytest.raises(Conflict, match="no state"):
        declared_states.find(owner.tenant, "orders")
    assert state(other) == {}


def test_an_invalid_state_declaration_is_refused(owner: Owner) -> None:
    for by in ("amount", "address", "id", "nobody"):
        with pytest.raises(UserError, match="text or an integer"):
            declare(owner, by)
    declare(owner)
    with pytest.raises(Conflict, match="another column"):
        declare(owner, "count")
    with pytest.raises(UserError):
        declare(owner, max_keys=STATE_KEYS + 1)


def test_a_newer_schema_without_the_key_is_refused(owner: Owner) -> None:
    declare(owner, "count")
    number = {"type": "object", "properties": {"country": {"type": "string"}, "count": {"type": "number"}}}
    dataset = registry.find_dataset(owner.tenant, "orders")
    grown = json.loads(dataset.document)
    grown["properties"]["count"] = number["properties"]["count"]  # type: ignore[index]
    uri = registry.publish_schema(owner.tenant, "orders", json.dumps(grown)).schema_uri
    with pytest.raises(Conflict, match="key of the dataset's state"):
        evolve.move_dataset(owner.tenant, "orders", uri)
    declared_states.drop(owner.tenant, "orders")
    assert evolve.move_dataset(owner.tenant, "orders", uri).schema_uri == uri


def test_a_state_goes_with_its_dataset(owner: Owner) -> None:
    declare(owner)
    owner.send(sent_at("a", 1))
    ingest(owner)
    registry.delete_dataset(owner.tenant, "orders")
    with postgres.tenant_transaction("pulse_api", owner.tenant.tenant_id) as connection:
        assert connection.execute("SELECT FROM event_state_keys").fetchall() == []


HARMS = (
    "UPDATE event_state_keys SET at = at - 1 WHERE key = 'DE'",
    "UPDATE event_state_keys SET event_id = 'b' WHERE key = 'DE'",
    "UPDATE event_state_keys SET data = replace(data, '1.5', '1.25') WHERE key = 'DE'",
    "UPDATE event_state_keys SET data = NULL WHERE key = 'DE'",
    "DELETE FROM event_state_keys WHERE key = 'DE'",
    "DELETE FROM event_state_keys WHERE key = 'DE'; UPDATE event_states SET keys = 1",
)


def test_the_check_notices_a_wrong_key_and_a_missing_one(owner: Owner) -> None:
    declare(owner)
    owner.send(
        sent_at("a", 1, country="DE", amount=1.5, address={"zip": "1", "more": [1e300, None]}, other=0.1),
        sent_at("b", 1, country="FR", amount=-0.0, count=2**60, signup_at="2026-11-19T10:00:00.123456Z"),
    )
    ingest(owner)
    for harm in HARMS:
        declare(owner)
        assert sound(owner)
        with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
            for statement in harm.split("; "):
                assert connection.execute(statement).rowcount == 1
        assert not sound(owner), harm
        declared_states.drop(owner.tenant, "orders")


def test_the_keys_of_all_states_have_a_limit(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared_states, "TENANT_KEYS", 10)
    declare(owner, max_keys=10)
    with pytest.raises(QuotaExceeded):
        declare(owner, max_keys=11)
    assert declared_states.find(owner.tenant, "orders").max_keys == 10


def test_an_erased_event_leaves_the_state_and_the_one_before_takes_its_place(owner: Owner) -> None:
    declare(owner)
    person = {"amount": 7.5}
    owner.send(sent_at("a", 1, country="DE"), sent_at("b", 2, country="DE", **person))
    owner.send(sent_at("c", 1, country="FR", **person), sent_at("d", 1, country="NL"))
    ingest(owner)
    receipt = erasure.erase(owner.tenant, "orders", "amount=7.5")
    assert receipt["removed"]["states"] == 2
    assert brief(owner) == model(owner)
    assert state(owner).keys() == {"DE", "NL"}
    assert declared_states.find(owner.tenant, "orders").complete
    assert sound(owner)


def test_a_build_that_an_erasure_overtakes_brings_nothing_back(owner: Owner, at: AtPoint) -> None:
    owner.send(sent_at("a", 1, country="DE", count=1), sent_at("b", 2, country="FR", count=2))
    ingest(owner)
    at("state_build.read", lambda: erasure.erase(owner.tenant, "orders", "country=DE"))
    declare(owner)
    assert state(owner).keys() == {"FR"}
    assert declared_states.find(owner.tenant, "orders").complete


def test_events_landed_by_a_backfill_are_in_the_state(owner: Owner) -> None:
    declare(owner)
    owner.send(event("a", country="DE", count=1), event("b", country="FR", count=1.5))
    ingest(owner)
    assert state(owner).keys() == {"DE"}
    move(owner, count={"type": "number"})
    assert rebuilt(owner).dead_letters_landed == 1
    assert brief(owner) == model(owner)
    assert brief(owner)["FR"][1] == "b"
    assert sound(owner)
