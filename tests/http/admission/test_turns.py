"""Who waits for whom: turns of tenants, rounds of the event loop, bytes in memory. No services."""

import asyncio
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from pulse_api.http.admission.turns import Turns
from pulse_api.http.collect import rounds
from pulse_api.http.collect.body_memory import BodyMemory
from pulse_api.http.collect.rounds import Rounds
from pulse_api.http.collect.running import NICENESS, SHORT_BYTES, Running
from pulse_api.http.collect.window import Window
from pulse_api.http.middleware import CLIENT_CLOSED_REQUEST, Envelope
from pulse_api.http.problems import ProblemError

pytestmark = pytest.mark.long

A, B, C = (uuid.UUID(int=number) for number in range(3))


def turns(**overrides: Any) -> Turns:
    limits = {"running": 2, "running_of_one": 1, "waiting_of_one": 4, "seconds": 20.0}
    return Turns("previews", **limits | overrides)


class Work:
    """Pieces of work that end when they are told to, and the order in which they began."""

    def __init__(self, of: Turns) -> None:
        self.turns = of
        self.began: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, *names: str) -> None:
        """Of the tenant that a name begins with."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._run(name, {"a": A, "b": B, "c": C}[name[0]]))
        await settle()

    async def _run(self, name: str, whom: uuid.UUID) -> None:
        async with self.turns.take(whom):
            self.began.append(name)
            await self._ends[name].wait()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_tenant_with_many_requests_waits_only_for_its_own() -> None:
    async def ask() -> None:
        work = Work(turns())
        await work.ask("a1", "a2", "a3", "a4", "a5", "a6")
        assert work.began == ["a1"], "one of its own at a time, also when there is room"
        assert isinstance(error := work.tasks["a6"].exception(), ProblemError)
        assert (error.status, error.headers["Retry-After"]) == (429, "1")
        await work.ask("b1", "b2", "c1", "c2")
        assert work.began == ["a1", "b1"]
        await work.end("a1")
        assert work.began[2:] == ["c1"], "who has waited for his first goes before anybody's next"
        await work.end("b1", "c1", "a2", "b2")
        assert work.began[3:] == ["a2", "b2", "c2", "a3"]
        await work.end("a3", "c2", "a4", "a5")
        assert work.began[-2:] == ["a4", "a5"]
        assert not work.turns._waiting
        assert not work.turns._running
        assert work.turns._free == 2

    asyncio.run(ask())


def test_requests_that_time_out_or_are_cancelled_do_not_block_others() -> None:
    async def ask() -> None:
        work = Work(turns(running=1, seconds=0.05))
        await work.ask("a1", "a2", "b1", "b2")
        work.tasks["b1"].cancel()
        await settle()
        await asyncio.wait([work.tasks["a2"], work.tasks["b2"]])
        for name in ("a2", "b2"):
            assert isinstance(error := work.tasks[name].exception(), ProblemError)
            assert error.status == 503
        await work.ask("b3")
        work.tasks["b3"].cancel()  # in the moment of its turn
        work._ends["a1"].set()
        await settle()
        await work.ask("c1")
        assert work.began == ["a1", "c1"]
        await work.end("c1")
        assert (work.turns._free, work.turns._waiting) == (1, {})

    asyncio.run(ask())


def test_a_tenant_has_its_part_of_a_round_however_many_requests_it_has() -> None:
    async def ask() -> None:
        shared_rounds, order = Rounds(), list[uuid.UUID]()

        def work(whom: uuid.UUID, seconds: float) -> Callable[[], None]:
            def spend() -> None:
                order.append(whom)
                until = time.thread_time() + seconds
                while time.thread_time() < until:
                    pass

            return spend

        async def run(whom: uuid.UUID, seconds: float) -> None:
            await shared_rounds.run(whom, work(whom, seconds))

        flood = [asyncio.create_task(run(A, rounds.ROUND_S)) for _ in range(30)]
        await asyncio.sleep(0)
        await asyncio.gather(*(run(B, 0.0) for _ in range(5)))
        assert order.count(A) <= 3, "in the order in which they came it would be thirty"
        await asyncio.gather(*flood)
        assert order.count(A) == 30
        flood = [asyncio.create_task(run(A, rounds.ROUND_S)) for _ in range(9)]
        await asyncio.sleep(0)
        for task in flood[1:5]:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        assert order.count(A) == 35
        await settle()
        assert (shared_rounds._parts, shared_rounds._going_on) == ({}, False), (
            "nothing goes on when nothing is left"
        )

    asyncio.run(ask())


def test_a_tenant_has_a_window_of_events_on_their_way() -> None:
    async def ask() -> None:
        window, order = Window(10), list[str]()
        ends: dict[str, asyncio.Event] = {}
        tasks: dict[str, asyncio.Task[None]] = {}

        async def run(name: str, count: int) -> None:
            async with window.take(name[0], count):
                order.append(name)
                await ends[name].wait()

        async def send(name: str, count: int) -> None:
            ends[name] = asyncio.Event()
            tasks[name] = asyncio.create_task(run(name, count))
            await settle()

        async def end(*names: str) -> None:
            for name in names:
                ends[name].set()
                await settle()

        await send("a1", 6)
        await send("a2", 4)
        await send("a3", 50)
        await send("a4", 1)
        await send("b1", 1)
        assert order == ["a1", "a2", "b1"], "who floods waits for its own, and nobody for another"
        await end("a1")
        assert order == ["a1", "a2", "b1"], "nobody overtakes: what is large would never go"
        await end("a2")
        assert order[3:] == ["a3"], "more than a window goes alone"
        for name in ("a5", "a6"):
            await send(name, 5)
        tasks["a4"].cancel()
        ends["a3"].set()
        await asyncio.sleep(0)
        tasks["a5"].cancel()  # in the moment of its turn
        await settle()
        assert order[4:] == ["a6"]
        await end("a6", "b1")
        assert (window._events, window._waiting) == ({}, {}), "nothing is counted when nothing is left"

    asyncio.run(ask())


def test_long_requests_and_those_after_expensive_ones_run_in_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "DEAR_S", 0.0)

    async def ask() -> None:
        running = Running()
        try:
            assert not running.short(A, SHORT_BYTES + 1)
            assert await running.in_worker(A, os.getpid) != os.getpid()
            assert await running.in_worker(A, os.getpriority, os.PRIO_PROCESS, 0) == NICENESS
            assert running.short(A, SHORT_BYTES)
            assert await running.in_loop(A, os.getpid) == os.getpid()
            assert not running.short(A, 100), "the one before was dear"
            assert running.short(B, 100)
            running._rounds._dear_until[A] = time.monotonic() - 1
            assert running.short(A, 100)
        finally:
            running.stop()

    asyncio.run(ask())


def test_a_tenant_has_one_large_request_at_a_time_and_a_neighbour_does_not_wait_for_it() -> None:
    async def ask() -> None:
        running, ended = Running(), []

        async def one(whom: UUID, name: str, seconds: float) -> None:
            await running.in_worker(whom, time.sleep, seconds)
            ended.append(name)

        try:
            running.start()
            await asyncio.gather(one(A, "a1", 0.5), one(A, "a2", 0.5), one(B, "b1", 0.0))
        finally:
            running.stop()
        assert ended == ["b1", "a1", "a2"]

    asyncio.run(ask())


def test_bodies_in_memory_are_bounded_in_all_and_for_one() -> None:
    memory = BodyMemory(100, 60)
    with memory.of(A) as first:
        first.add(50)
        with pytest.raises(ProblemError) as too_much, memory.of(A) as second:
            second.add(20)
        assert too_much.value.status == 429
        with pytest.raises(ProblemError) as too_much, memory.of(B) as other:
            other.add(55)
        assert too_much.value.status == 503
        with memory.of(B) as other:
            other.add(50)
    assert (memory._all, memory._by) == (0, {})


def test_a_client_that_disconnects_before_its_body_is_not_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError("nobody is there")

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    wrapped: Callable[[Scope, Receive, Send], Awaitable[None]] = Envelope(app, 100, log=True)
    asyncio.run(wrapped(scope, receive, send))
    assert f'"status":{CLIENT_CLOSED_REQUEST}' in capfd.readouterr().out
