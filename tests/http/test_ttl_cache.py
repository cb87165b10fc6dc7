"""What is kept between requests: read once for all who wait, and never from before it was forgotten."""

import asyncio
import threading

from chaos.waiting import PATIENCE_S
from pulse_api.http.ttl_cache import TtlCache


class Source:
    """Something that changes, and is read as slowly as a test wants."""

    def __init__(self) -> None:
        self.value: int | None = 1
        self.reads = 0
        self.slow = threading.Event()
        self.go_on = threading.Event()

    def read(self, _: str) -> int | None:
        self.reads += 1
        value = self.value
        if self.slow.is_set():
            self.go_on.wait(PATIENCE_S)
        return value

    async def is_read(self, reads: int) -> None:
        while self.reads < reads:
            await asyncio.sleep(0.001)


def test_waiting_callers_share_one_read_and_later_ones_get_the_cached_value() -> None:
    source = Source()

    async def ask() -> None:
        cache = TtlCache(source.read, seconds=60)
        assert await asyncio.gather(*(cache.get("a") for _ in range(10))) == [1] * 10
        source.value = 2
        assert await cache.get("a") == 1
        assert source.reads == 1
        cache.forget("another")
        assert await cache.get("a") == 1
        cache.forget("a")
        assert await cache.get("a") == 2
        source.value = 3
        cache.forget()
        assert await cache.get("a") == 3

    asyncio.run(ask())


def test_afresh_does_not_share_a_read_that_began_before() -> None:
    source = Source()

    async def ask() -> None:
        cache = TtlCache(source.read, seconds=60)
        source.slow.set()
        first = asyncio.create_task(cache.get("a"))
        await source.is_read(1)
        source.value = 2  # issued just now
        fresh = [asyncio.create_task(cache.get("a", afresh=True)) for _ in range(5)]
        await asyncio.sleep(0)
        source.slow.clear()
        source.go_on.set()
        assert await first == 1
        assert await asyncio.gather(*fresh) == [2] * 5
        assert source.reads == 2, "those who want it afresh share a read of their own"

    asyncio.run(ask())


def test_a_read_under_way_at_a_forget_is_neither_cached_nor_shared() -> None:
    source = Source()

    async def ask() -> None:
        cache = TtlCache(source.read, seconds=60)
        source.slow.set()
        before = asyncio.create_task(cache.get("a"))
        await source.is_read(1)
        source.value = 2  # revoked just now
        cache.forget("a")
        source.slow.clear()
        assert await cache.get("a") == 2, "it does not wait for the read that began before"
        source.go_on.set()
        assert await before == 1
        assert await cache.get("a") == 2

    asyncio.run(ask())


def test_the_oldest_is_evicted_first_and_nothing_outlives_its_limit() -> None:
    source = Source()

    async def ask() -> None:
        cache = TtlCache(source.read, seconds=60, most=2)
        for key in ("a", "b", "c", "b", "c"):
            await cache.get(key)
        assert source.reads == 3
        await cache.get("a")
        assert source.reads == 4
        brief = TtlCache(source.read, seconds=0)
        await brief.get("a")
        await brief.get("a")
        assert source.reads == 6
        source.value = None
        assert await brief.get("a") is None

    asyncio.run(ask())
