"""Pace: whoever asks for much at once waits for himself, and nobody else does."""

import asyncio

from starlette.types import Receive, Scope, Send

from pulse_api.http.admission.pace import Pace
from pulse_api.http.middleware import Envelope


def of(address: str | None) -> dict[str, object]:
    return {"client": None if address is None else (address, 1)}


async def one(pace: Pace, address: str | None, addresses: list[str]) -> None:
    await pace.begin(of(address))
    addresses.append(str(address))


def test_a_request_of_another_address_is_served_between_those_of_a_crowd() -> None:
    async def run() -> list[str]:
        pace, addresses = Pace(), []
        crowd = [asyncio.create_task(one(pace, "crowd", addresses)) for _ in range(100)]
        while addresses.count("crowd") < 10:
            await asyncio.sleep(0)
        addresses.append("arrives")
        await asyncio.create_task(one(pace, "neighbour", addresses))
        await asyncio.gather(*crowd)
        assert not pace._waiting, "nothing is kept of who waits for nothing"
        return addresses

    addresses = asyncio.run(run())
    arrived = addresses.index("arrives")
    assert addresses.index("neighbour") - arrived <= 2
    assert (addresses.count("crowd"), addresses.count("neighbour")) == (100, 1)


def test_a_cancelled_request_does_not_delay_the_next() -> None:
    async def run() -> list[str]:
        pace, addresses = Pace(), []
        tasks = [asyncio.create_task(one(pace, "a", addresses)) for _ in range(5)]
        await asyncio.sleep(0)
        for task in tasks[1:4]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return addresses

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
    addresses: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        addresses.append(scope["client"][0])

    async def run() -> None:
        envelope = Envelope(app, 100, log=False)

        def request_from(address: str) -> asyncio.Task[None]:
            scope = {"type": "http", "method": "GET", "headers": [], "client": (address, 1)}
            return asyncio.create_task(envelope(scope, None, None))

        tasks = [*(request_from("crowd") for _ in range(50)), request_from("neighbour")]
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert addresses.index("neighbour") <= 2
    assert len(addresses) == 51
