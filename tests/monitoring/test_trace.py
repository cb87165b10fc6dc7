"""What became of one event is told, whatever it was, and nothing of another tenant's."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from support.backfill import rebuilt
from support.faults import AtPoint
from support.here import ingest_here as ingest
from support.http import Caller
from support.ingest import Owner, event, plan_batch, run_batch
from support.lake import DAY
from support.topics import delete_topic
from typer.testing import CliRunner

from pulse_api import cli
from pulse_pipelines import dead_letters, registry
from pulse_pipelines.dead_letters import Filter
from pulse_pipelines.erasure import run as erasure
from pulse_pipelines.monitoring import trace
from pulse_pipelines.monitoring.trace import Fate, FateState, Trace, rows, topic
from pulse_pipelines.query.snapshots import snapshots
from pulse_pipelines.tables import live_table
from pulse_resources.errors import NotFound, Transient

pytestmark = pytest.mark.usefixtures("stack")


def of_id(owner: Owner, event_id: str, **where: Any) -> Trace:
    return trace.by_id(owner.tenant, event_id, **where)


def of_place(owner: Owner, offset: int) -> Fate:
    (fate,) = trace.by_place(owner.tenant, 0, offset).fates
    return fate


def test_an_event_waits_is_in_a_batch_and_lands(owner: Owner) -> None:
    owner.send(event("a"), event("b"))
    waits = of_id(owner, "a")
    assert (waits.state, waits.settled) == (FateState.WAITING, False)
    assert (waits.fates[0].dataset, waits.fates[0].place) == ("orders", (0, 0))
    assert of_place(owner, 1).state is FateState.WAITING
    batch = plan_batch([owner])
    for fate in (of_id(owner, "b").fates[0], of_place(owner, 1)):
        assert (fate.state, fate.batch_id) == (FateState.IN_BATCH, batch)
    run_batch(batch)
    landed = of_id(owner, "b")
    assert (landed.state, landed.settled) == (FateState.LANDED, True)
    assert landed.fates == (of_place(owner, 1),), "by its id and by its place"
    (fate,) = landed.fates
    (snapshot,) = snapshots(owner.tenant, "orders")
    assert (fate.event_id, fate.place, fate.batch_id) == ("b", (0, 1), batch)
    assert fate.row is not None
    assert (fate.row.day, fate.row.snapshot_id) == (DAY, snapshot.snapshot_id)
    dataset = registry.find_dataset(owner.tenant, "orders")
    assert fate.row.file in live_table.live_files(live_table.current(owner.tenant, dataset))


def test_a_copy_names_the_event_that_landed(owner: Owner) -> None:
    owner.send(event("a"), event("a", amount=2))
    ingest(owner)
    owner.send(event("b"), event("a", amount=3))
    assert of_id(owner, "a").state is FateState.LANDED, "though a copy waits"
    assert not of_id(owner, "a").settled
    ingest(owner)
    for offset in (1, 3):
        copy = of_place(owner, offset)
        assert (copy.state, copy.copy_of, copy.event_id) == (FateState.DUPLICATE, "0-0", "a")
        assert copy.row == of_place(owner, 0).row
    assert [fate.place for fate in of_id(owner, "a").fates] == [(0, 0)]


def test_a_dead_letter_is_open_replayed_and_discarded(owner: Owner) -> None:
    owner.send(event("bad", count="many"), event("late", dataset="visits"), b"no json")
    ingest(owner)
    letter = of_id(owner, "bad").fates[0]
    assert letter.state is FateState.DEAD_LETTERED
    assert letter.dead_letter is not None
    assert (letter.dead_letter.reason, letter.dead_letter.pointer) == ("schema_violation", "/data/count")
    assert of_place(owner, 0) == letter
    assert of_place(owner, 2).dead_letter is not None, "which has no id"
    dead_letters.discard(owner.tenant, ["0-0"])
    assert of_id(owner, "bad").state is FateState.DISCARDED
    uri = registry.find_dataset(owner.tenant, "orders").schema_uri
    registry.create_dataset(owner.tenant, "visits", uri)
    dead_letters.replay(owner.tenant, Filter(dataset="visits"))
    on_its_way = of_id(owner, "late")
    assert [fate.state for fate in on_its_way.fates] == [FateState.WAITING, FateState.REPLAYED]
    assert not on_its_way.settled
    ingest(owner)
    assert [fate.state for fate in of_id(owner, "late").fates] == [FateState.LANDED, FateState.REPLAYED]


def test_the_trace_of_a_rebuilt_day_names_the_backfill(owner: Owner) -> None:
    owner.send(event("a"), event("late", count="3"))
    ingest(owner)
    before = of_place(owner, 0)
    backfilled = rebuilt(owner)
    after = of_id(owner, "a").fates[0]
    assert before.row is not None
    assert after.row is not None
    assert (before.row.rebuilds, after.row.file == before.row.file) == ((), False)
    assert [rebuild.backfill_id for rebuild in after.row.rebuilds] == [backfilled.backfill_id]
    assert (after.batch_id, after.settled_at) == (before.batch_id, before.settled_at)


def test_an_erased_event_is_known_by_its_place(owner: Owner) -> None:
    owner.send(event("a"), event("b", count="many"), event("c"))
    ingest(owner)
    for event_id in ("a", "b"):
        erasure.erase(owner.tenant, "orders", f"event_id={event_id}")
    assert of_place(owner, 0).state is FateState.ERASED
    assert of_place(owner, 0).erasure_id
    assert of_id(owner, "a").state is FateState.ERASED, "its claim is left"
    assert of_place(owner, 1).state is FateState.ERASED
    with pytest.raises(NotFound):
        of_id(owner, "b")
    assert of_id(owner, "c").state is FateState.LANDED


def test_an_id_in_several_datasets_has_a_fate_in_each(owner: Owner) -> None:
    uri = registry.find_dataset(owner.tenant, "orders").schema_uri
    registry.create_dataset(owner.tenant, "visits", uri)
    owner.send(event("a"), event("a", dataset="visits"))
    ingest(owner)
    assert {fate.dataset for fate in of_id(owner, "a").fates} == {"orders", "visits"}
    assert [fate.dataset for fate in of_id(owner, "a", dataset="visits").fates] == ["visits"]


def test_a_trace_names_the_limits_of_its_search(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds are settings of the look: here they are small."""
    for number in range(
        4
    ):  # two tasks, two files: "b" is within the bounds of each second; one run of claims
        owner.send(event(f"b-{number}"), event(f"a-{number}"), event(f"z-{number}"))
        ingest(owner)
    monkeypatch.setattr(rows, "MAX_FILES", 1)
    assert of_id(owner, "z-3").fates[0].row is not None, "the trace reads the latest first"
    hidden = of_id(owner, "b-0")
    assert (hidden.state, hidden.fates[0].row) == (FateState.LANDED, None)
    assert "the latest 1 of " in hidden.looked_at[0]
    assert of_id(owner, "b-0", day=DAY).fates[0].detail.endswith("that was not searched")
    assert "of another day" in of_id(owner, "b-0", day=DAY - timedelta(days=1)).fates[0].detail
    assert of_place(owner, 0).row is not None, "by its place the right file is known"
    monkeypatch.setattr(topic, "MAX_MESSAGES", 1)
    owner.send(event("first"), event("last"))
    assert of_id(owner, "last").state is FateState.WAITING
    with pytest.raises(NotFound, match="the latest 1 of 2 events that are not settled"):
        of_id(owner, "first")


def test_a_trace_has_an_event_that_settles_meanwhile(owner: Owner, at: AtPoint) -> None:
    owner.send(event("a"))
    done = at("trace.after_topic", lambda: ingest(owner))
    assert of_id(owner, "a").state is FateState.LANDED
    assert done


def test_a_trace_has_settled_events_without_their_topic(owner: Owner) -> None:
    owner.send(event("a"))
    ingest(owner)
    delete_topic(owner)
    answer = of_id(owner, "a")
    assert answer.state is FateState.LANDED
    assert "nothing of the topic" in answer.looked_at[0]
    with pytest.raises(Transient):
        of_id(owner, "b")


def test_places_where_no_event_is(owner: Owner) -> None:
    owner.send(event("a"))
    for partition, offset in ((0, 1), (9, 0)):
        with pytest.raises(NotFound):
            trace.by_place(owner.tenant, partition, offset)


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli.app, ["trace", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_the_command_takes_an_id_or_a_place(new_owner: Callable[[], Owner]) -> None:
    owner, other = new_owner(), new_owner()
    traced = json.loads(event("urn:a:1")) | {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"}
    owner.send(json.dumps(traced).encode(), event("bad", count="many"))
    batch = ingest(owner)
    slug, topic_name = owner.tenant.slug, owner.tenant.topic
    by_id = json.loads(run(slug, "urn:a:1", "--json"))
    assert (by_id["state"], by_id["fates"][0]["batch_id"]) == ("landed", batch)
    assert json.loads(run(slug, f"{topic_name}:0:0", "--json")) == by_id
    assert by_id["fates"][0]["row"]["trace_id"] == traced["trace_id"]
    assert traced["trace_id"] in run(slug, "urn:a:1")
    printed = run(slug, "bad")
    assert "dead lettered" in printed
    assert "schema_violation at /data/count" in printed
    unknown = run(other.tenant.slug, "bad", code=2)
    assert "no such event was accepted" in unknown
    assert "event=bad" in unknown
    assert "Compare the id with what the sender sent" in unknown
    assert "the topic is another tenant's" in run(other.tenant.slug, f"{topic_name}:0:0", code=2)


def test_over_http_a_tenant_sees_its_own(new_caller: Callable[..., Caller]) -> None:
    caller, other = new_caller(), new_caller()
    caller.owner.send(event("/shop#7"), event("bad", count="many"), event("x\ny\n"))
    ingest(caller.owner)
    answer = caller.http.get("/v1/events/%2Fshop%237", params={"dataset": "orders", "day": str(DAY)})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["state"], answer.json()["settled"]) == ("landed", True)
    assert answer.json()["fates"][0]["row"]["day"] == str(DAY)
    assert caller.http.get("/v1/events/x%0Ay%0A").json()["event_id"] == "x\ny\n"
    assert caller.http.get("/v1/events/bad").json()["fates"][0]["dead_letter"]["id"] == "0-1"
    refused = [other.http.get(f"/v1/events/{event_id}") for event_id in ("%2Fshop%237", "bad", "none")]
    assert {answer.status_code for answer in refused} == {404}
    assert len({answer.json()["detail"] for answer in refused}) == 1, "whether or not somebody has it"
