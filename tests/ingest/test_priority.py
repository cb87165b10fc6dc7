"""Whoever floods waits: batches of their own, runs of their own, tasks that stand aside for small ones."""

import json
import os
import time
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace
from uuid import UUID

import dagster as dg
import pytest
from support.here import ingest_here
from support.ingest import Owner, event, ingest, make_owner, plan_batch, run_batch

from chaos.surroundings import superuser, with_settings
from pulse_pipelines import registry
from pulse_pipelines.defs.ingest import job
from pulse_pipelines.defs.ingest.sensor import LagCursor, ingest_lag
from pulse_pipelines.ingest import attempts, costs, plan as planning, priority
from pulse_resources.settings import Settings


def requests(*, since: float = 0.0, **waiting: Owner) -> dict[str, dict[str, str]]:
    """Tags of the runs that the sensor asks for, by the names given, when all of them have waited.

    Tags name few tenants, and what other tests left waiting may go along: the ledger says whose a run is.
    """
    cursor = LagCursor(time.time(), {owner.tenant.tenant_id: since for owner in waiting.values()}).cursor()
    with dg.DagsterInstance.ephemeral() as instance:
        result = ingest_lag(dg.build_sensor_context(instance=instance, cursor=cursor))
    assert isinstance(result, dg.SensorResult)
    return {
        name: request.tags
        for name, owner in waiting.items()
        for request in result.run_requests or ()
        if owner.tenant.slug in attempts.waiting_in(request.tags["pulse/batch"])
    }


def test_a_tenant_that_floods_is_not_in_one_batch_with_the_others(stack: Settings) -> None:
    flooding, one, other = make_owner(), make_owner(), make_owner()
    flooding.send(*(event(f"e{n}") for n in range(9)))
    for quiet in (one, other):
        quiet.send(event("a"))
    with with_settings(INGEST__FLUSH_ROWS=9):
        tags = requests(flooding=flooding, one=one, other=other)
    assert [tags[name]["pulse/lane"] for name in ("flooding", "one", "other")] == ["bulk", "quick", "quick"]
    batches = [tags[name]["pulse/batch"] for name in ("flooding", "one", "other")]
    assert batches[0] != batches[1] == batches[2]


def test_a_tenant_of_many_columns_is_not_in_one_batch_with_the_others(
    stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3,092 events for 142 tables of 1,700 columns took 220 s, for which the others waited."""
    wide, one, other = make_owner(), make_owner(), make_owner()
    fields = {f"p{number}": {"type": "string"} for number in range(100)}
    schema = json.dumps({"type": "object", "properties": fields})
    registry.create_dataset(
        wide.tenant, "wide", registry.publish_schema(wide.tenant, "wide", schema).schema_uri
    )
    for owner in (wide, one, other):
        owner.send(event("a"))
    monkeypatch.setattr(costs, "MOST_SCHEMA_BYTES", 10_000)
    tags = requests(wide=wide, one=one, other=other)
    assert [tags[name]["pulse/lane"] for name in ("wide", "one", "other")] == ["costly", "quick", "quick"]
    batches = [tags[name]["pulse/batch"] for name in ("wide", "one", "other")]
    assert batches[0] != batches[1] == batches[2]
    plans = [attempts.load_plan(batch, 1) for batch in batches]
    assert [plan.bulk for plan in plans] == [True, False, False], "it pauses for them"


def test_tenants_just_below_the_bound_are_not_all_in_one_batch(
    stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch has the schemas of all its tenants in Spark's memory: 57 MB of them ended it for everybody."""
    owners = {name: make_owner() for name in ("one", "two", "three")}
    for owner in owners.values():
        owner.send(event("a"))
    sizes = costs.tenant_costs([owner.tenant.tenant_id for owner in owners.values()]).schema_bytes
    monkeypatch.setattr(costs, "MOST_BATCH_SCHEMA_BYTES", 2 * max(sizes.values()))
    queries: list[Collection[UUID]] = []
    tenant_costs = costs.tenant_costs

    def counted(tenant_ids: Collection[UUID]) -> costs.TenantCosts:
        queries.append(tenant_ids)
        return tenant_costs(tenant_ids)

    for module in (costs, planning):
        monkeypatch.setattr(module, "tenant_costs", counted)
    tags = requests(since=0.0, **owners)
    assert [tags[name]["pulse/lane"] for name in owners] == ["quick"] * 3
    batches = {tags[name]["pulse/batch"] for name in owners}
    assert len(batches) > 1, "two of them fill a batch"
    assert sum(owners["one"].tenant.tenant_id in ids for ids in queries) == 1, (
        "once for all batches of a plan"
    )


def test_a_tenant_of_many_files_has_batches_of_its_own_for_a_while(
    stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is written for each day of a batch's events: 2,000 events can have 2,000 days."""
    spread, usual = make_owner(), make_owner()
    days = [event(f"e{day}").replace(b"2026-11-19", f"2026-10-{day:02}".encode()) for day in range(1, 6)]
    spread.send(*days)
    usual.send(event("a"), event("b"))
    ingest_here(spread, usual)
    tenants = [owner.tenant.tenant_id for owner in (spread, usual)]
    assert costs.tenant_costs(tenants).costly == frozenset()
    monkeypatch.setattr(costs, "MOST_FILE_BYTES", 4 * costs.FILE_BYTES)
    assert costs.tenant_costs(tenants).costly == {spread.tenant.tenant_id}
    registry.delete_dataset(spread.tenant, "orders")
    assert costs.tenant_costs(tenants).costly == {spread.tenant.tenant_id}, "its next one is no different"
    monkeypatch.setattr(costs, "REMEMBERED_S", 0.0)
    assert costs.tenant_costs(tenants).costly == frozenset()


def test_a_first_batch_of_many_files_lets_the_others_settle(
    stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 events of 2,000 days took up to 107 s, for which the others waited."""
    spread, more, usual = make_owner(), make_owner(), make_owner()
    for owner in (spread, more):
        days = (f"2026-10-{day:02}".encode() for day in range(1, 6))
        owner.send(*(event(f"e{n}").replace(b"2026-11-19", day) for n, day in enumerate(days)))
    usual.send(event("a"))
    monkeypatch.setattr(costs, "MOST_FILE_BYTES", 4 * costs.FILE_BYTES)
    batch = plan_batch([spread, more, usual])
    assert not run_batch(batch, 1, raise_on_error=False)
    assert [len(owner.rows()) for owner in (spread, more, usual)] == [0, 0, 1]
    (waiting,) = [b for b in attempts.open_batches() if b.batch_id == batch]
    assert "so many days" in str(waiting.last_error)
    assert f"tenant={spread.tenant.slug}" in str(waiting.last_error)
    run_batch(batch, 2)
    assert [len(owner.rows()) for owner in (spread, more, usual)] == [5, 5, 1]


def test_a_run_that_reports_leaves_its_place_in_the_lane() -> None:
    with dg.DagsterInstance.ephemeral() as instance:

        def limited_as(run_id: str) -> str:
            run = instance.get_run_by_id(run_id)
            assert run
            return run.tags[job.LIMIT_TAG]

        started = dg.DagsterRunStatus.STARTED
        runs = [
            instance.create_run_for_job(job.ingest, tags={job.LIMIT_TAG: "quick"}, status=started).run_id
            for _ in range(job.MOST_REPORTING + 1)
        ]
        for run in runs:
            job._free_slot(instance, run)
        *first, last = runs
        assert {limited_as(run) for run in first} == {job.REPORTING}
        assert limited_as(last) == "quick", "reports do not pile up beside the limit"
        instance.delete_run(first[0])
        job._free_slot(instance, last)
        assert limited_as(last) == job.REPORTING


def test_a_large_batch_lands_whole(owner: Owner) -> None:
    with with_settings(INGEST__FLUSH_ROWS=2):
        owner.send(event("a"), event("b"), event("a"))
        ingest(owner)
    assert [row["id"] for row in owner.rows()] == ["a", "b"]


class Clock(SimpleNamespace):
    """Time that only naps and the test itself let pass."""

    now: float = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(priority, "time", clock)
    return clock


def test_a_large_batch_stands_aside_at_most_as_long_as_it_has_worked(
    owner: Owner, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waited(after: float) -> float:
        clock.now += after
        before = clock.now
        pause()
        return clock.now - before

    owner.send(event("a"), event("b"))
    batch = plan_batch([owner])
    mine = f"b.state = 'running' AND b.batch_id = '{batch}'"  # whatever other tests left behind
    monkeypatch.setattr(
        priority, "SMALL_BATCH_RUNS", priority.SMALL_BATCH_RUNS.replace("b.state = 'running'", mine)
    )
    pause = priority.GiveWay()
    assert waited(after=5) == 0, "it does not run yet"
    with attempts.hold_attempt(batch, 1):
        assert waited(after=priority.CHECK_INTERVAL_S / 2) == 0, "it looks now and then only"
        assert waited(after=1) == pytest.approx(6, abs=0.2), "as long as it has worked since it last waited"
        assert waited(after=1) == pytest.approx(1, abs=0.2)
        monkeypatch.setattr(priority, "SMALL_S", 0.0)
        assert waited(after=1) == 0, "the other one takes long, however few its events"
        monkeypatch.setattr(priority, "SMALL_S", 60.0)
        with superuser() as connection:
            connection.execute("UPDATE ingest_batches SET kind = 'bulk' WHERE batch_id = %s", [batch])
        assert waited(after=1) == 0, "the other one is large, too"
    attempts.next_attempt(batch, 1, "given up")
    assert waited(after=1) == 0, "it runs no more"


def niceness_after_standing_aside() -> int:
    priority.lower_for_good()
    return os.nice(0)


@pytest.mark.long
def test_a_run_process_lowers_its_own_priority_and_not_that_of_its_parent() -> None:
    before = os.nice(0)
    with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as runs:
        assert runs.submit(niceness_after_standing_aside).result() == before + priority.NICENESS
    assert niceness_after_standing_aside() == before
