"""Full syncs: what one did not bring is deleted once all of it has settled, and never otherwise."""

from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given, strategies as st
from support.entities import SLUG, as_model, entity, make_entities, pages
from support.faults import AtPoint
from support.ingest import Owner, ingest, make_owner, next_attempt, plan_batch, run_batch, start_attempt
from support.pipes import make_pipe

from chaos.surroundings import superuser
from pulse_pipelines import pipes
from pulse_pipelines.domain.syncs import Part, SyncState
from pulse_pipelines.entities import sync_progress, syncs
from pulse_pipelines.entities.syncs import Sync
from pulse_pipelines.erasure import run as erasure
from pulse_pipelines.ingest import attempts, plan, sync_deletions
from pulse_pipelines.monitoring import checks
from pulse_pipelines.monitoring.issues import Kind, find_issues
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_resources import postgres
from pulse_resources.errors import Conflict, Transient, UserError
from pulse_resources.process import faults
from pulse_resources.settings import Settings


@pytest.fixture
def owner(stack: Settings) -> Owner:
    owner = make_owner()
    make_entities(owner)
    syncs.allow(owner.tenant, SLUG, 1)
    return owner


def push(owner: Owner, *sent: tuple[str, dict[str, Any]]) -> None:
    owner.send(*(entity(key, **properties) for key, properties in sent))


def bring(
    owner: Owner,
    *parts: list[tuple[str, dict[str, Any]]],
    name: str = "s",
    last: bool = True,
    full: bool = True,
    refused: tuple[str | None, ...] = (),
) -> None:
    """Send a sync of these parts."""
    for number, sent in enumerate(parts):
        ends = last and number == len(parts) - 1
        part = Part(name, str(number), str(number - 1) if number else None, full, not number, ends)
        taking = syncs.begin(owner.tenant, SLUG, part)
        push(owner, *sent)
        syncs.finish(owner.tenant, SLUG, taking, refused)


def latest(owner: Owner) -> dict[str, dict[str, Any] | None]:
    return dict(as_model(pages(owner)))


def newest(owner: Owner) -> Sync:
    return syncs.list_syncs(owner.tenant, SLUG)[0]


def settle(owner: Owner) -> None:
    """Everything that waits, and the deletions that follow from it."""
    while sync_deletions.send_of(owner.tenant) or waits(owner):
        ingest(owner)


def waits(owner: Owner) -> bool:
    return owner.tenant.tenant_id in plan.ingest_status().waiting


def sound(owner: Owner) -> None:
    assert checks.run("latest_equals_log", owner.tenant, SLUG).problems == []
    report = reconcile_tenant(owner.tenant)
    assert report.balanced, report.problems


IDS_OF_SYNC = "SELECT FROM entity_sync_ids WHERE tenant_id = %s"
AGE = "UPDATE entity_syncs SET part_at = part_at - interval '25 hours' WHERE tenant_id = %s"
DE, FR, ES = ("DE", {"people": 83}), ("FR", {"people": 68}), ("ES", {"people": 48})


def test_entities_absent_from_a_full_sync_are_deleted_once(owner: Owner) -> None:
    push(owner, DE, FR, ES)
    ingest(owner)
    bring(owner, [DE], [("FR", {"people": 69})], [])
    ingest(owner)
    assert latest(owner) == {"DE": DE[1], "FR": {"people": 69}, "ES": ES[1]}, "its deletions are on their way"
    settle(owner)
    assert latest(owner) == {"DE": DE[1], "FR": {"people": 69}, "ES": None}
    sync = newest(owner)
    assert (sync.state, sync.parts) == (SyncState.DONE, 3)
    assert (sync.created, sync.changed, sync.unchanged, sync.deleted) == (0, 1, 1, 1)
    before = len(pages(owner))
    bring(owner, [DE, ("FR", {"people": 69})], name="again")
    settle(owner)
    assert (newest(owner).state, len(pages(owner))) == (SyncState.DONE, before)
    sound(owner)


def test_an_entity_that_becomes_a_dead_letter_beside_its_deletion_stays(owner: Owner) -> None:
    push(owner, DE, FR, ES)
    ingest(owner)
    bring(owner, [DE])
    ingest(owner)
    assert newest(owner).state == SyncState.DELETING, "its deletions are on their way"
    push(owner, ("FR", {"people": "many"}))
    settle(owner)
    assert latest(owner) == {"DE": DE[1], "FR": FR[1], "ES": None}
    assert (newest(owner).state, newest(owner).deleted) == (SyncState.DONE, 1)
    sound(owner)


@pytest.mark.slow
def test_an_incremental_sync_and_one_without_its_end_delete_nothing(owner: Owner) -> None:
    push(owner, DE, FR)
    ingest(owner)
    bring(owner, [ES], full=False)
    settle(owner)
    assert newest(owner).state == SyncState.DONE
    bring(owner, [DE], name="half", last=False)
    settle(owner)
    assert newest(owner).state == SyncState.OPEN
    bring(owner, [DE, ES], name="next")
    settle(owner)
    assert latest(owner) == {"DE": DE[1], "FR": None, "ES": ES[1]}
    assert [sync.state for sync in syncs.list_syncs(owner.tenant, SLUG)][:2] == [
        SyncState.DONE,
        SyncState.SUPERSEDED,
    ]


def test_a_sync_without_parts_for_a_day_fails_and_keeps_no_ids(owner: Owner) -> None:
    bring(owner, [], name="gone", last=False, refused=("ES",))
    assert sync_deletions.send_of(owner.tenant) == 0
    assert newest(owner).state == SyncState.OPEN
    with superuser() as connection:
        of_tenant = [owner.tenant.tenant_id]
        assert len(connection.execute(IDS_OF_SYNC, of_tenant).fetchall()) == 1
        connection.execute(AGE, of_tenant)
        assert owner.tenant in sync_deletions.due()
        assert sync_deletions.send_of(owner.tenant) == 0
        assert connection.execute(IDS_OF_SYNC, of_tenant).fetchall() == []
    assert (newest(owner).state, newest(owner).reason) == (
        SyncState.FAILED,
        "no part of it came for 24 hours",
    )
    assert owner.tenant not in sync_deletions.due()
    with pytest.raises(Conflict, match="no such sync is open"):
        syncs.begin(owner.tenant, SLUG, Part("gone", "1", "0", True, False, True))


def test_a_broken_chain_is_refused(owner: Owner) -> None:
    bring(owner, [DE], [FR], last=False)
    for part in (
        Part("s", "9", "0", True, False, True),  # not the part before
        Part("other", "1", "0", True, False, True),  # began nowhere
        Part("s", "2", "1", False, False, True),  # another kind
    ):
        with pytest.raises(Conflict, match="the chain of the sync is broken"):
            syncs.begin(owner.tenant, SLUG, part)
    with pytest.raises(UserError, match="first part"):
        Part("s", "2", None, True, False, True)
    again = syncs.begin(owner.tenant, SLUG, Part("s", "1", "0", True, False, False))
    assert again.repeated
    one, other = (
        syncs.begin(owner.tenant, SLUG, Part("s", name, "1", True, False, True)) for name in ("a", "b")
    )
    syncs.finish(owner.tenant, SLUG, one, [])
    with pytest.raises(Conflict, match="another request was faster"):
        syncs.finish(owner.tenant, SLUG, other, [])


@pytest.mark.slow
def test_refused_entities_are_not_deleted_by_a_full_sync(owner: Owner) -> None:
    push(owner, DE, FR, ES)
    ingest(owner)
    bring(owner, [DE, ("FR", {"people": "many"})], refused=("ES",))
    settle(owner)
    assert latest(owner) == {"DE": DE[1], "FR": FR[1], "ES": ES[1]}
    assert (newest(owner).state, newest(owner).refused) == (SyncState.DONE, 2)
    bring(owner, [DE], name="nameless", refused=(None,))
    settle(owner)
    assert newest(owner).state == SyncState.HELD
    assert "refused without an _id" in str(newest(owner).reason)


@pytest.mark.slow
def test_entities_sent_since_a_full_sync_began_are_not_deleted(owner: Owner) -> None:
    push(owner, DE, FR, ES)
    ingest(owner)
    bring(owner, [DE])
    ingest(owner)  # the deletions are on the topic
    push(owner, FR)  # unchanged, and after them
    push(owner, ES)
    ingest(owner)
    assert latest(owner) == {"DE": DE[1], "FR": FR[1], "ES": ES[1]}
    bring(owner, [DE], name="held")
    syncs.allow(owner.tenant, SLUG, 0)
    settle(owner)
    push(owner, FR)  # unchanged, while a person thinks
    ingest(owner)
    syncs.decide(owner.tenant, SLUG, newest(owner).sync_id, commit=True)
    settle(owner)
    assert latest(owner) == {"DE": DE[1], "FR": FR[1], "ES": None}
    sound(owner)


@pytest.mark.parametrize("commit", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_sync_that_would_delete_too_much_is_held_for_a_decision(owner: Owner, commit: bool) -> None:
    syncs.allow(owner.tenant, SLUG, 0.4)
    push(owner, DE, FR, ES)
    ingest(owner)
    bring(owner, [DE])
    settle(owner)
    sync = newest(owner)
    assert (sync.state, sync.absent, sync.entities) == (SyncState.HELD, 2, 3)
    assert sync.reason == "it would delete 2 of 3 entities, and 40% is the most"
    (issue,) = [one for one in find_issues({}, 0)[0].issues if one.about.get("tenant") == owner.tenant.slug]
    assert (issue.kind, issue.about["dataset"]) == (Kind.SYNC_HELD, SLUG)
    assert f"pulse sync commit {owner.tenant.slug} {SLUG} {sync.sync_id}" in issue.fix
    assert None not in latest(owner).values()
    syncs.decide(owner.tenant, SLUG, sync.sync_id, commit=commit)
    settle(owner)
    assert (newest(owner).state, None in latest(owner).values()) == (
        (SyncState.DONE, True) if commit else (SyncState.ROLLED_BACK, False)
    )
    with pytest.raises(Conflict, match="no sync with this number is held"):
        syncs.decide(owner.tenant, SLUG, sync.sync_id, commit=True)


@pytest.mark.slow
def test_an_erased_entity_is_not_absent(owner: Owner) -> None:
    """It would be absent from each sync, and count towards what a person has to decide about."""
    syncs.allow(owner.tenant, SLUG, 0.4)
    push(owner, DE, FR, ES)
    ingest(owner)
    erasure.erase(owner.tenant, SLUG, "event_id=ES")
    erasure.erase(owner.tenant, SLUG, "event_id=FR")
    bring(owner, [DE])
    settle(owner)
    assert (newest(owner).state, newest(owner).reason, newest(owner).deleted) == (SyncState.DONE, None, 0)
    push(owner, FR, ("FR", {"people": 69}), ("IT", {"people": 59}))
    ingest(owner)
    bring(owner, [DE, ("FR", {"people": 69})], name="next")
    settle(owner)
    assert newest(owner).state == SyncState.DONE
    assert latest(owner) == {"DE": DE[1], "FR": {"people": 69}, "IT": None}
    sound(owner)


def test_an_empty_full_sync_is_held(owner: Owner) -> None:
    push(owner, DE)
    ingest(owner)
    bring(owner, [])
    settle(owner)
    assert newest(owner).reason == "it brought nothing, and would delete all 1 entities"
    assert latest(owner) == {"DE": DE[1]}


def test_a_run_that_dies_between_leaves_the_deletions_to_the_next(owner: Owner, at: AtPoint) -> None:
    push(owner, DE, FR)
    ingest(owner)
    bring(owner, [DE])
    batch = plan_batch([owner])
    start_attempt(batch, PULSE_FAIL_POINT="sync.after_note").killed()
    assert newest(owner).state == SyncState.SENT
    following = next_attempt(batch)

    def die() -> None:
        raise ConnectionError("the process ends here")

    at("deletions.after_publish", die)  # published, and nobody knows
    run_batch(batch, following)
    assert newest(owner).state == SyncState.DELETING
    sync_deletions.send_of(owner.tenant)  # again
    settle(owner)
    assert as_model(pages(owner)) == [DE, FR, ("FR", None)]
    assert (newest(owner).state, newest(owner).deleted) == (SyncState.DONE, 1)
    sound(owner)


KEYS = st.sampled_from(["a", "b", "c"])
CONTENTS = st.one_of(
    st.just({"_deleted": True}), st.fixed_dictionaries({}, optional={"people": st.integers(0, 1)})
)
SENT = st.lists(st.tuples(KEYS, CONTENTS), max_size=5)
POINTS = (
    "settle.before_commit", "settle.after_commit", "sync.after_note", "deletions.before_decide",
    "deletions.before_publish", "deletions.after_publish", "heads.after_advance",
)  # fmt: skip
STEP = st.tuples(
    SENT, st.sampled_from(["push", "partial", "full", "half"]), st.none() | st.sampled_from(POINTS)
)
States = dict[str, list[dict[str, Any] | None]]


def apply(log: States, sent: list[tuple[str, dict[str, Any]]], how: str) -> None:
    """The model: the states of each entity after one more step."""
    for key, properties in sent:
        state = None if properties.get("_deleted") else properties
        if key not in log or log[key][-1] != state:
            log.setdefault(key, []).append(state)
    if how == "full":
        for key in log.keys() - {key for key, _ in sent}:
            if log[key][-1] is not None:
                log[key].append(None)


@pytest.mark.slow
@hypothesis.settings(max_examples=8, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEP, min_size=2, max_size=4))
def test_any_sequence_of_pushes_syncs_and_crashes_gives_the_states_of_the_model(
    stack: Settings, steps: list[Any]
) -> None:
    owner = make_owner()
    make_entities(owner)
    syncs.allow(owner.tenant, SLUG, 1)
    log: States = {}
    for number, (sent, how, point) in enumerate(steps):
        if how == "push":
            push(owner, *sent)
        else:
            bring(owner, sent, name=str(number), full=how != "partial", last=how != "half")
        with faults.at(point or "nowhere", Dying()):
            settle_somehow(owner)
        apply(log, sent, how)
        if how == "full" and newest(owner).state == SyncState.HELD:
            assert not sent
            syncs.decide(owner.tenant, SLUG, newest(owner).sync_id, commit=True)
            settle_somehow(owner)
        states: States = {}
        for key, state in as_model(pages(owner)):
            states.setdefault(key, []).append(state)
        assert states == log, (number, how, point)
        assert how == "push" or newest(owner).state == (SyncState.OPEN if how == "half" else SyncState.DONE)
    sound(owner)


class Dying:
    """Ends what comes by for the first time."""

    def __init__(self) -> None:
        self.done = False

    def __call__(self) -> None:
        if not self.done:
            self.done = True
            raise ConnectionError("the process ends here")


def settle_somehow(owner: Owner) -> None:
    """As `settle`, whatever dies on the way."""
    while True:
        (_, outcome), *_ = sync_deletions.send([owner.tenant])
        for batch in attempts.open_batches():
            if owner.tenant.slug in attempts.waiting_in(batch.batch_id):
                run_batch(batch.batch_id, batch.attempt, raise_on_error=False)
        if waits(owner):
            run_batch(plan_batch([owner]), raise_on_error=False)
        elif outcome == 0:
            return


def test_a_failed_pipe_run_counts_its_entities_and_deletes_none(owner: Owner) -> None:
    make_pipe(owner, SLUG)
    push(owner, ("a", {}), ("b", {}))
    ingest(owner)
    bring(owner, [("b", {}), ("c", {})], last=False)
    failed = """
    UPDATE entity_syncs SET pipe = %s, state = 'failed', ended_at = now(),
        ends = jsonb_build_object('0', (starts->>'0')::bigint + 2) WHERE tenant_id = %s
    """
    count_of_ids = "SELECT count(*) FROM entity_sync_ids WHERE tenant_id = %s"
    with superuser() as connection:
        connection.execute(failed, [SLUG, owner.tenant.tenant_id])
        push(owner, ("d", {}))  # after it has failed
        settle(owner)
        assert connection.execute(count_of_ids, [owner.tenant.tenant_id]).fetchall() == [(0,)]
    sync = newest(owner)
    assert (sync.state, sync.created, sync.unchanged) == (SyncState.FAILED, 1, 1)
    push(owner, ("e", {}))
    settle(owner)
    assert pipes.last_day(owner.tenant)[owner.tenant.tenant_id, SLUG] == pipes.LastDay(created=1, unchanged=1)
    assert latest(owner).keys() == {"a", "b", "c", "d", "e"}
    sound(owner)


def test_a_tenants_oldest_open_syncs_fail_for_newer_ones(owner: Owner) -> None:
    """A client that began 300,000 syncs and ended none made each batch settle for two minutes, for a day."""
    first = begin(owner, "first", full=False)
    repeat(first, sync_progress.MOST_OPEN)
    last = begin(owner, "last", full=False)
    unfinished = unfinished_syncs(owner)
    assert len(unfinished) == sync_progress.MOST_OPEN
    assert last in unfinished
    assert first not in unfinished
    (failed,) = (sync for sync in syncs.list_syncs(owner.tenant, SLUG, 2_000) if sync.sync_id == first)
    assert failed.state == SyncState.FAILED
    assert failed.reason == "1,000 syncs began after it, and none of its parts came meanwhile"
    with pytest.raises(Conflict):
        syncs.begin(owner.tenant, SLUG, Part("first", "2", "1", is_full=False, is_first=False, is_last=True))


def test_full_syncs_of_which_no_part_was_accepted_are_few(owner: Owner) -> None:
    """For each of them a batch stored the ids of all its entities of the dataset."""
    begun = [begin(owner, str(number), full=True) for number in range(sync_progress.MOST_EMPTY_FULL + 3)]
    assert unfinished_syncs(owner) == begun[3:]


def test_the_syncs_of_pipes_are_not_failed_for_those_of_clients(owner: Owner) -> None:
    of_pipe = begin(owner, "pipe", full=False)
    with superuser() as connection:
        connection.execute("UPDATE entity_syncs SET pipe = 'planes' WHERE sync_id = %s", [of_pipe])
    repeat(begin(owner, "first", full=False), sync_progress.MOST_OPEN)
    begin(owner, "last", full=False)
    assert of_pipe in unfinished_syncs(owner)


def test_syncs_that_were_sent_whole_and_have_not_settled_are_limited(owner: Owner) -> None:
    bring(owner, [("a", {"name": "A"})], full=False)
    repeat(newest(owner).sync_id, sync_progress.MOST_SENT)
    with pytest.raises(Transient, match="were sent whole and have not settled"):
        begin(owner, "one more", full=False)
    ingest(owner)
    assert begin(owner, "one more", full=False) in unfinished_syncs(owner)
    assert {sync.created for sync in syncs.list_syncs(owner.tenant, SLUG, 1_000)[1:]} == {1}


def begin(owner: Owner, name: str, *, full: bool) -> int:
    """Begin a sync without an accepted part; returns its id."""
    part = Part(name, "1", None, is_full=full, is_first=True, is_last=False)
    return syncs.begin(owner.tenant, SLUG, part).sync_id


def repeat(sync_id: int, times: int) -> None:
    """Enter so many copies of a sync, as if requests had begun them."""
    names = "tenant_id, dataset_id, is_full, request_id, parts, state, starts, ends, part_at"
    copies = f"SELECT {names}, 'copy' || n FROM entity_syncs, generate_series(1, %s) n WHERE sync_id = %s"
    with superuser() as connection:
        connection.execute(f"INSERT INTO entity_syncs ({names}, sequence_id) {copies}", [times, sync_id])


def unfinished_syncs(owner: Owner) -> list[int]:
    tenant_id = owner.tenant.tenant_id
    with postgres.tenant_transaction("pulse_pipeline", tenant_id) as connection:
        return [sync.sync_id for sync in sync_progress.unfinished(connection, tenant_id=tenant_id)]
