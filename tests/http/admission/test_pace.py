"""Pace: whoever asks for much at once waits for himself, and nobody else does."""

import asyncio

from starlette.types import Receive, Scope, Send

from pulse_api.http.admission.pace import Pace
from pulse_api.http.middleware import Envelope


def of(address: str | None) -> dict[str, object]:
    return {"client": None if address is None else (address, 1)}


async def one(pace: Pace, address: str | None, begun: list[str]) -> None:
    await pace.begin(of(address))
    begun.append(str(address))


def test_a_request_of_another_address_is_served_between_those_of_a_crowd() -> None:
    async def run() -> list[str]:
        pace, begun = Pace(), []
        crowd = [asyncio.create_task(one(pace, "crowd", begun)) for _ in range(100)]
        while begun.count("crowd") < 10:
            await asyncio.sleep(0)
        begun.append("arrives")
        await asyncio.create_task(one(pace, "neighbour", begun))
        await asyncio.gather(*crowd)
        assert not pace._waiting, "nothing is kept of who waits for nothing"
        return begun

    begun = asyncio.run(run())
    arrived = begun.index("arrives")
    assert begun.index("neighbour") - arrived <= 2
    assert (begun.count("crowd"), begun.count("neighbour")) == (100, 1)


def test_a_cancelled_request_does_not_delay_the_next() -> None:
    async def run() -> list[str]:
        pace, begun = Pace(), []
        tasks = [asyncio.create_task(one(pace, "a", begun)) for _ in range(5)]
        await asyncio.sleep(0)
        for task in tasks[1:4]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return begun

    assert asyncio.run(run()) == ["a", "a"]


def test_one_request_at_a_time_waits_for_nothing() -> None:
    async def run() -> None:
        pace = Pace()
        for address in ("a", None, "b"):
            began = pace.begin(of(address))
            try:
                began.send(None)
            except StopIteration:
                continue
            raise AssertionError("it waited")

    asyncio.run(run())


def test_every_request_of_the_app_has_its_pace() -> None:
    begun: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.append(scope["client"][0])

    async def run() -> None:
        envelope = Envelope(app, 100, log=False)

        def asked(address: str) -> asyncio.Task[None]:
            scope = {"type": "http", "method": "GET", "headers": [], "client": (address, 1)}
            return asyncio.create_task(envelope(scope, None, None))

        tasks = [*(asked("crowd") for _ in range(50)), asked("neighbour")]
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert begun.index("neighbour") <= 2
    assert len(begun) == 51
