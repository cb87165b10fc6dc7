"""An event that ends the process that works on it stops nobody: it becomes a dead letter, the rest lands."""

from collections.abc import Callable

import pytest
from support.backfill import balanced, rebuilt
from support.ingest import Owner, event, ingest, plan_batch, run_batch

from chaos.surroundings import with_settings
from pulse_pipelines import dead_letters
from pulse_pipelines.dead_letters import DeadLetterOutcome, Filter
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.ingest import attempts
from pulse_pipelines.monitoring import trace
from pulse_pipelines.monitoring.trace import FateState
from pulse_resources.process import faults

POISON = "p01s0n"


def attempt(batch: str, number: int) -> bool:
    """Run an attempt; whether the batch is settled by it."""
    run_batch(batch, number, raise_on_error=False)
    return batch not in {open_batch.batch_id for open_batch in attempts.open_batches()}


@pytest.mark.parametrize(("kind", "apart_from", "isolated_at"), [("segv", 3, 4), ("memory", 1, 3)])
@pytest.mark.sample(1)
def test_poison_becomes_a_dead_letter_and_other_events_land(
    new_owner: Callable[[], Owner],
    kind: str,
    apart_from: int,
    isolated_at: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A crash ends the job of all, as long as they share one; memory that runs out fails its tenant only."""
    monkeypatch.setenv(faults.POISON, f"{kind}:{POISON}")
    owner, neighbour = new_owner(), new_owner()
    poison = event("bad", country=POISON)
    owner.send(*(event(f"a-{n}") for n in range(10)), poison, event("a-1"), event("worse", count="many"))
    neighbour.send(event("b-1"), event("b-2"))
    batch = plan_batch([owner, neighbour])
    with with_settings(SPARK__TASK_MEMORY_MB=2_048):
        for number in range(1, isolated_at):
            assert not attempt(batch, number)
            landed = 2 if number >= apart_from else 0
            assert balanced(neighbour) == (landed, 0, 0), "before anything is isolated"
        assert attempt(batch, isolated_at)
    assert {row["id"] for row in owner.rows(columns="id")} == {f"a-{n}" for n in range(10)}
    assert balanced(owner) == (10, 1, 2)
    letter, other = owner.dead_letters()
    assert (letter["reason"], letter["payload"], letter["dataset"]) == (
        Reason.PROCESSING_FAILED,
        poison,
        "orders",
    )
    assert letter["published_at"] is not None
    assert other["reason"] == Reason.SCHEMA_VIOLATION, "judged as ever"
    assert trace.by_id(owner.tenant, "bad").state is FateState.DEAD_LETTERED
    assert balanced(neighbour) == (2, 0, 0)


def test_a_batch_of_nothing_but_poison_settles_as_dead_letters(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is alone, so they are isolated as soon as it has a job of its own."""
    monkeypatch.setenv(faults.POISON, f"segv:{POISON}")
    owner.send(event("bad", country=POISON), event("worse", country=POISON))
    batch = plan_batch([owner])
    assert [attempt(batch, number) for number in (1, 2, 3)] == [False, False, True]
    assert balanced(owner) == (0, 0, 2)


def test_where_nothing_can_be_processed_no_event_is_blamed(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(faults.POISON, "segv:event_id")  # every event, and the probe
    owner.send(event("a"), event("b"))
    batch = plan_batch([owner])
    assert [attempt(batch, number) for number in (1, 2, 3)] == [False, False, False]
    (stuck,) = [open_batch for open_batch in attempts.open_batches() if open_batch.batch_id == batch]
    assert "no event can be processed, whoever's it is" in str(stuck.last_error)
    monkeypatch.delenv(faults.POISON)
    assert attempt(batch, 4)
    assert balanced(owner) == (2, 0, 0)


def test_poison_ends_neither_a_replay_nor_a_backfill(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both run in a process that others need, too; what Pulse can process by then lands by a replay."""
    monkeypatch.setenv(faults.POISON, f"segv:{POISON}")
    owner.send(event("a"), event("bad", country=POISON))
    batch = plan_batch([owner])
    assert [attempt(batch, number) for number in (1, 2, 3)][-1]
    assert rebuilt(owner).rows == 1
    assert dead_letters.replay(owner.tenant, Filter(), dry_run=True).counts == {
        DeadLetterOutcome.WOULD_LAND: 1
    }
    assert dead_letters.replay(owner.tenant, Filter()).counts == {DeadLetterOutcome.PUBLISHED: 1}
    monkeypatch.delenv(faults.POISON)
    ingest(owner)
    assert {row["id"] for row in owner.rows(columns="id")} == {"a", "bad"}
    assert balanced(owner) == (2, 0, 1)
