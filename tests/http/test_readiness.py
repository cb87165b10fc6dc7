"""Readiness: no request waits for a check while the result of the last one is recent."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from chaos.waiting import PATIENCE_S
from pulse_api.http import readiness
from pulse_api.http.readiness import CheckResult, Readiness


class Probe:
    """Checks of services that end when they may."""

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
def probe() -> Probe:
    return Probe()


@pytest.fixture
def state(probe: Probe) -> Iterator[Readiness]:
    readiness_state = Readiness(probe)
    yield readiness_state
    probe.may_end.set()
    readiness_state.stop()


def test_many_requests_share_one_check_a_second(state: Readiness, probe: Probe) -> None:
    async def ask() -> None:
        assert await asyncio.gather(*(state.missing() for _ in range(9))) == [None] * 9

    asyncio.run(ask())
    assert probe.number == 1


def test_a_request_during_a_check_gets_the_last_result(state: Readiness, probe: Probe) -> None:
    async def ask() -> None:
        probe.missing, probe.began_ago = "Kafka", (readiness.KEEP_S + readiness.STALE_S) / 2
        assert await state.missing() == "Kafka"
        probe.may_end.clear()
        probe.missing, probe.began_ago = None, 0.0
        assert await state.missing() == "Kafka", "the next check is under way"
        probe.may_end.set()
        while await state.missing():
            await asyncio.sleep(0.01)

    asyncio.run(ask())
    assert probe.number == 2


def test_an_old_result_is_not_used(state: Readiness, probe: Probe) -> None:
    async def ask() -> None:
        probe.began_ago = readiness.STALE_S
        assert await state.missing() is None
        probe.missing = "Postgres"
        assert await state.missing() == "Postgres"

    asyncio.run(ask())


def test_no_request_waits_for_the_check_of_a_missing_service(state: Readiness, probe: Probe) -> None:
    """A service that stands still holds each check up for seconds, after which its result is old."""

    async def ask() -> None:
        probe.missing, probe.began_ago = "Postgres", readiness.STALE_S
        assert await state.missing() == "Postgres"
        probe.may_end.clear()
        assert await state.missing() == "Postgres"
        assert probe.number == 2, "the second check is under way, and may not end"
        probe.missing, probe.began_ago = None, 0.0
        probe.may_end.set()
        assert await state.missing() is None, "there is time for a quick check"

    asyncio.run(ask())


def test_a_check_continues_after_its_request_is_cancelled(state: Readiness, probe: Probe) -> None:
    async def ask() -> None:
        probe.may_end.clear()
        waiting = asyncio.create_task(state.missing())
        await asyncio.sleep(0)
        waiting.cancel()
        probe.may_end.set()
        assert await state.missing() is None

    asyncio.run(ask())
    assert probe.number == 1


def test_a_failed_check_is_followed_by_another(state: Readiness, probe: Probe) -> None:
    async def ask() -> None:
        probe.error = ValueError("unforeseen")
        with pytest.raises(ValueError, match="unforeseen"):
            await state.missing()
        probe.error = None
        assert await state.missing() is None

    asyncio.run(ask())
