"""Turns of own tables, and of tenants, in an upkeep: what never ends holds up nobody."""

import signal
import time
import uuid
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from support.lake import spark

from pulse_pipelines.domain.requests import Task
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake.catalog import OwnTable
from pulse_pipelines.maintenance import history, own_tables, run, state, table_turns
from pulse_pipelines.maintenance.history import Done
from pulse_pipelines.maintenance.policy import Need, TenantState, of_tenant
from pulse_pipelines.maintenance.table_turns import take_turns
from pulse_resources.settings import Settings, UpkeepSettings

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
STATE = TenantState(uuid.uuid4(), "acme", NOW, NOW, None, None, True, NOW)


def tables(*names: str) -> list[OwnTable]:
    return [OwnTable(("own",), name, ("pulse_acme.own", name), f"s3://pulse/{name}") for name in names]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_turns, "FIRST_S", 1.0)  # far longer than what is done in a turn here


def never_end() -> None:
    while True:
        try:
            time.sleep(0.01)
        except Exception:  # noqa: S112 - as code does that reads what others wrote
            continue


def test_an_endless_table_leaves_the_other_tables_their_turn() -> None:
    done = list[str]()

    def work(table: OwnTable) -> None:
        if table.name == "endless":
            never_end()
        done.append(table.name)

    ((unfinished, longest),) = take_turns(tables("a", "endless", "b", "c"), work, 4.0)
    assert (unfinished.name, sorted(done)) == ("endless", ["a", "b", "c"])
    assert longest > table_turns.FIRST_S
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_large_table_gets_longer_turns_after_all_others() -> None:
    names = list[str]()

    def work(table: OwnTable) -> None:
        names.append(table.name)
        if table.name == "large" and signal.getitimer(signal.ITIMER_REAL)[0] < 3 * table_turns.FIRST_S:
            never_end()

    assert take_turns(tables("large", "a", "b"), work, 60.0) == []
    assert sorted(names[:3]) == ["a", "b", "large"]
    assert names[3:] == ["large", "large"]


def test_an_error_of_an_interrupted_driver_is_not_a_failure_of_the_table() -> None:
    def work(table: OwnTable) -> None:
        try:
            never_end()
        finally:
            raise ValueError("another command is in progress")

    assert [table.name for table, _ in take_turns(tables("a"), work, 0.3)] == ["a"]


def test_a_table_without_a_turn_is_named() -> None:
    assert take_turns(tables("a"), lambda table: None, 0.0) == [(tables("a")[0], 0.0)]


def test_the_tenant_that_waits_longest_goes_first() -> None:
    def weight(tidied_at: datetime | None) -> int:
        (need,) = (
            n
            for n in of_tenant(replace(STATE, tidied_at=tidied_at), UpkeepSettings())
            if n.task is Task.TENANT_TABLES
        )
        return need.weight

    assert weight(None) > weight(NOW - timedelta(days=3)) > weight(NOW - timedelta(days=2)) > 0


def test_tenants_share_the_remaining_time_of_a_run(stack: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant that is done soon leaves its time to the others."""
    shares = list[float]()

    def keep(tenant: Tenant, done: Done, seconds: float) -> None:
        shares.append(seconds)

    monkeypatch.setattr(own_tables, "keep", keep)
    monkeypatch.setattr(history, "recorded", lambda *task: nullcontext())
    monkeypatch.setattr(state, "save_tenant", lambda tenant, tidied_at: None)
    needs = [
        Need(Tenant(uuid.uuid4(), slug), None, None, Task.TENANT_TABLES, "", 0) for slug in ("a", "b", "c")
    ]
    assert len(list(run.run(spark, needs, run_id=None, seconds=900.0))) == 3
    assert shares[0] <= 300 < shares[1] <= 450 < shares[2] <= 900
