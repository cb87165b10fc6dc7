"""Readiness: nobody waits for a look while what the last one found is not old."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from chaos.waiting import PATIENCE_S
from pulse_api.http import readiness
from pulse_api.http.readiness import CheckResult, Readiness


class Looks:
    """Looks that end when they may."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.may_end.set()
        self.began_ago = 0.0
        self.missing: str | None = None
        self.error: Exception | None = None
        self.number = 0

    def __call__(self) -> CheckResult:
        self.number += 1
        assert self.may_end.wait(PATIENCE_S)
        if self.error:
            raise self.error
        return CheckResult(time.monotonic() - self.began_ago, self.missing)


@pytest.fixture
def looks() -> Looks:
    return Looks()


@pytest.fixture
def asked(looks: Looks) -> Iterator[Readiness]:
    found = Readiness(looks)
    yield found
    looks.may_end.set()
    found.stop()


def test_however_many_ask_there_is_one_look_a_second(asked: Readiness, looks: Looks) -> None:
    async def ask() -> None:
        assert await asyncio.gather(*(asked.missing() for _ in range(9))) == [None] * 9

    asyncio.run(ask())
    assert looks.number == 1


def test_who_asks_while_a_look_is_under_way_is_told_what_the_last_one_found(
    asked: Readiness, looks: Looks
) -> None:
    async def ask() -> None:
        looks.missing, looks.began_ago = "Kafka", (readiness.KEEP_S + readiness.STALE_S) / 2
        assert await asked.missing() == "Kafka"
        looks.may_end.clear()
        looks.missing, looks.began_ago = None, 0.0
        assert await asked.missing() == "Kafka", "the next look is under way"
        looks.may_end.set()
        while await asked.missing():
            await asyncio.sleep(0.01)

    asyncio.run(ask())
    assert looks.number == 2


def test_what_was_found_long_ago_says_nothing(asked: Readiness, looks: Looks) -> None:
    async def ask() -> None:
        looks.began_ago = readiness.STALE_S
        assert await asked.missing() is None
        looks.missing = "Postgres"
        assert await asked.missing() == "Postgres"

    asyncio.run(ask())


def test_nobody_waits_for_a_look_at_what_was_missing(asked: Readiness, looks: Looks) -> None:
    """A service that stands still holds each look up for seconds, after which what it found is old."""

    async def ask() -> None:
        looks.missing, looks.began_ago = "Postgres", readiness.STALE_S
        assert await asked.missing() == "Postgres"
        looks.may_end.clear()
        assert await asked.missing() == "Postgres"
        assert looks.number == 2, "the second look is under way, and may not end"
        looks.missing, looks.began_ago = None, 0.0
        looks.may_end.set()
        assert await asked.missing() is None, "there is time for a look that is quick"

    asyncio.run(ask())


def test_a_look_goes_on_when_whoever_asked_has_gone(asked: Readiness, looks: Looks) -> None:
    async def ask() -> None:
        looks.may_end.clear()
        waiting = asyncio.create_task(asked.missing())
        await asyncio.sleep(0)
        waiting.cancel()
        looks.may_end.set()
        assert await asked.missing() is None

    asyncio.run(ask())
    assert looks.number == 1


def test_readiness_is_checked_again_after_a_failure(asked: Readiness, looks: Looks) -> None:
    async def ask() -> None:
        looks.error = ValueError("unforeseen")
        with pytest.raises(ValueError, match="unforeseen"):
            await asked.missing()
        looks.error = None
        assert await asked.missing() is None

    asyncio.run(ask())
