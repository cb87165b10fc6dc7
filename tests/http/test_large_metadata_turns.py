"""Queries of tables with large metadata take turns: a tenant with many leaves others a process."""

import asyncio
from collections.abc import Callable
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from chaos.waiting import PATIENCE_S
from pulse_api.http.admission.turns import Turns
from pulse_api.http.queries import LARGE, Queries, _Running
from pulse_api.http.views import Views
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import parsing
from pulse_pipelines.sql import pinned
from pulse_pipelines.sql.processes import CancelledError
from pulse_pipelines.sql.run import QueryRequest
from pulse_resources.errors import Transient

MANY, ONE = Tenant(uuid4(), "many"), Tenant(uuid4(), "one")


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> Queries:
    def refuse(*_: object) -> None:
        raise parsing.Large("large")

    monkeypatch.setattr(pinned, "tables", refuse)
    return Queries(cast(Views, None))


def query(tenant: Tenant) -> _Running:
    return _Running(QueryRequest(tenant, "SELECT 1"))


class Slow:
    """Worker processes whose work ends when it is told to."""

    def __init__(self) -> None:
        self.begun: list[UUID] = []
        self.end = asyncio.Event()

    async def run(self, _: Callable[..., object], tenant: Tenant, *__: object) -> list[object]:
        self.begun.append(tenant.tenant_id)
        await self.end.wait()
        return []


def test_a_tenant_with_many_leaves_a_process_to_another(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pin_all() -> None:
        loop, slow = asyncio.get_running_loop(), Slow()
        monkeypatch.setattr(queries, "_large", slow)

        def begin(tenant: Tenant) -> "asyncio.Task[Any]":
            return asyncio.create_task(
                asyncio.to_thread(queries._pin, loop, query(tenant), tenant, [], [], None)
            )

        many = [begin(MANY) for _ in range(LARGE + 1)]
        while sum(map(len, queries._turns._waiting.values())) < LARGE:
            await asyncio.sleep(0.001)
        last = begin(ONE)
        while len(slow.begun) < 2:
            await asyncio.sleep(0.001)
        assert slow.begun == [MANY.tenant_id, ONE.tenant_id]
        slow.end.set()
        assert await asyncio.gather(*many, last) == [[]] * (LARGE + 2)

    asyncio.run(asyncio.wait_for(pin_all(), PATIENCE_S))


def test_a_query_without_a_turn_in_time_is_a_transient_error(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = Turns("queries", running=0, running_of_one=1, waiting_of_one=1, seconds=0)
    monkeypatch.setattr(queries, "_turns", never)

    async def pin() -> None:
        await asyncio.to_thread(queries._pin, asyncio.get_running_loop(), query(ONE), ONE, [], [], None)

    with pytest.raises(Transient, match="turn did not come in 0 s"):
        asyncio.run(pin())


def test_a_query_that_is_cancelled_leaves_the_line(queries: Queries, monkeypatch: pytest.MonkeyPatch) -> None:
    async def pin_two() -> None:
        loop, slow = asyncio.get_running_loop(), Slow()
        monkeypatch.setattr(queries, "_large", slow)
        running, waiting = query(MANY), query(MANY)
        first = asyncio.create_task(asyncio.to_thread(queries._pin, loop, running, MANY, [], [], None))
        while not slow.begun:
            await asyncio.sleep(0.001)
        second = asyncio.create_task(asyncio.to_thread(queries._pin, loop, waiting, MANY, [], [], None))
        while not queries._turns._waiting:
            await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(CancelledError):
            await second
        while queries._turns._waiting:
            await asyncio.sleep(0.001)
        slow.end.set()
        assert await first == []
        assert slow.begun == [MANY.tenant_id]

    asyncio.run(asyncio.wait_for(pin_two(), PATIENCE_S))


def test_a_query_that_was_cancelled_before_does_not_wait(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_large", Slow())
    cancelled = query(ONE)
    cancelled.cancel()

    async def pin() -> None:
        await asyncio.to_thread(queries._pin, asyncio.get_running_loop(), cancelled, ONE, [], [], None)

    with pytest.raises(CancelledError):
        asyncio.run(asyncio.wait_for(pin(), PATIENCE_S))
