"""Rates that several API processes hold together: by counts of what gets through."""

import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import cast
from uuid import uuid4

import httpx
import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError
from support.http import sample, served, service_process
from support.ingest import make_owner

from chaos.surroundings import TLS, superuser, with_settings
from chaos.waiting import PATIENCE_S, wait
from pulse_api.http.admission.rate_shares import RateShares
from pulse_api.http.admission.rates import Rates
from pulse_api.http.auth import take
from pulse_api.http.keyring import Keyring
from pulse_api.http.problems import ProblemError
from pulse_api.http.routes.tenants import NewLimits
from pulse_api.http.routes.usage import limit_info
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.quota import FASTEST, SLOWEST, Limits, part
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry import keys, quotas
from pulse_resources.settings import Settings

RATE = 60
"""Events per second."""
AT_ONCE = 10
LOOK_S = 0.5
per_second = st.floats(0, 1e6, allow_subnormal=False)


@given(rate=st.floats(1, 1e6), asked=st.lists(per_second, min_size=1, max_size=6))
def test_the_parts_of_all_processes_are_the_rate(rate: float, asked: list[float]) -> None:
    parts = [part(rate, own, asked[:n] + asked[n + 1 :]) for n, own in enumerate(asked)]
    assert sum(parts) == pytest.approx(rate)
    for own, got in zip(asked, parts, strict=True):
        assert got >= min(own, rate / len(asked)) * (1 - 1e-9), "nobody is kept from an equal part"


@pytest.mark.parametrize("rate", [5e-324, 1e-300])
def test_a_rate_that_was_set_before_rates_had_bounds_is_waited_for(rate: float) -> None:
    rates, tenant = Rates(), uuid4()
    rates.share({}, 0.25)
    assert rates.take(tenant, "requests", 1, rate) == 0.0
    assert rates.take(tenant, "requests", 1, rate) == pytest.approx(4 / SLOWEST, rel=0.01)


def test_a_rate_outside_the_bounds_is_refused() -> None:
    for rate in (-1, 0, SLOWEST, 2.5, FASTEST):
        assert NewLimits.model_validate({"requestsPerSecond": rate}).requests_per_second == rate
    for rate in (5e-324, 1e-300, SLOWEST / 2, -0.5, -2, 2 * FASTEST):
        for name in ("requestsPerSecond", "eventsPerSecond"):
            with pytest.raises(ValidationError, match=r"must be from 0\.001 to 1,000,000,000 per second, -1"):
                NewLimits.model_validate({name: rate})


def test_both_names_of_a_limit_are_one_limit() -> None:
    """What GET answers can be sent back by PUT."""
    for names in (
        ["maxRecordsPerMonth"],
        ["maxDatasetsPerMonth"],
        ["maxRecordsPerMonth", "maxDatasetsPerMonth"],
    ):
        assert NewLimits.model_validate(dict.fromkeys(names, 7.0)).max_records_per_month == 7
    answered = limit_info(Limits(max_datasets=3, requests_per_second=2.5)).model_dump(by_alias=True)
    assert NewLimits.model_validate(answered).model_dump(by_alias=True)["maxDatasets"] == 3
    with pytest.raises(ValidationError, match="are the same limit: name only one of them"):
        NewLimits.model_validate({"maxRecordsPerMonth": 7, "maxDatasetsPerMonth": 8})


def test_a_refused_request_waits_an_hour_at_most() -> None:
    keyring = cast(Keyring, SimpleNamespace(rates=Rates()))
    tenant = Tenant(uuid4(), "acme")
    take(keyring, tenant, "events", 10**6, SLOWEST)
    with pytest.raises(ProblemError) as refused:
        take(keyring, tenant, "events", 1, SLOWEST)
    assert refused.value.headers["Retry-After"] == "3600"


def test_a_small_demand_is_met_beside_a_large_one() -> None:
    assert part(100, 5, [1_000]) == 5
    assert part(100, 1_000, [5]) == 95
    assert part(100, 1_000, []) == 100
    assert part(100, 0, [20]) == 40, "unused parts of the rate are shared equally"


# in one process, with looks by hand --------------------------------------------------------------


class Door:
    """What a process has of the API as far as rates go."""

    def __init__(self) -> None:
        self.rates = Rates()
        self.shares = RateShares(self.rates)
        self.tenant = uuid4()

    def ask(self, count: int, rate: float = 100.0) -> None:
        self.rates.take(self.tenant, "events", count, rate)

    @property
    def share(self) -> float:
        return self.rates._shares.get((self.tenant, "events"), self.rates._equal)


@contextmanager
def doors(count: int) -> Iterator[list[Door]]:
    with with_settings(API__RATE_LOOK_SECONDS=20), ExitStack() as stack:
        all_doors = [Door() for _ in range(count)]
        for door in all_doors:
            stack.callback(door.shares.leave)
            door.tenant = all_doors[0].tenant
        for door in (*all_doors, *all_doors):
            door.shares.update_shares()
        yield all_doors


def test_busy_processes_share_a_rate_and_a_single_one_gets_all_of_it(stack: Settings) -> None:
    with doors(3) as (a, b, c):
        assert max(door.share for door in (a, b, c)) <= 1 / 3
        a.ask(10**6)
        for door in (a, b, c):
            door.shares.update_shares()
        assert a.share == 1, "the others are idle"
        for _ in range(2):
            a.ask(10**6)
            b.ask(10**6)
            a.shares.update_shares()
            b.shares.update_shares()
        assert (a.share, b.share) == (0.5, 0.5)
        b.shares.leave()
        a.ask(10**6)
        a.shares.update_shares()
        assert a.share == 1


def test_a_tenant_s_other_rates_and_other_tenants_are_their_own(stack: Settings) -> None:
    with doors(2) as (a, b):
        a.ask(10**6)
        a.shares.update_shares()
        b.tenant = uuid4()
        b.ask(10**6)
        b.shares.update_shares()
        assert (a.share, b.share) == (1, 1)


def test_parts_stay_while_postgres_does_not_answer(stack: Settings, caplog: pytest.LogCaptureFixture) -> None:
    with doors(2) as (a, b):
        for _ in range(2):
            for door in (a, b):
                door.ask(10**6)
                door.shares.update_shares()
        with superuser() as connection:
            connection.execute("REVOKE ALL ON api_processes FROM pulse_api")
            try:
                for _ in range(3):
                    a.ask(1)
                    a.shares.update_shares()
                assert a.share == 0.5
                assert len([r for r in caplog.records if "until Postgres answers" in r.message]) == 1
            finally:
                connection.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON api_processes TO pulse_api")
        a.ask(10**6)
        a.shares.update_shares()
        assert a.share == 0.5


# processes ---------------------------------------------------------------------------------------


class Senders:
    """Send to addresses, as fast as they answer, until they are told to stop."""

    def __init__(self, key: str, *urls: str) -> None:
        self.accepted: Counter[str] = Counter()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(key, url)) for url in urls]

    def __enter__(self) -> "Senders":
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _send(self, key: str, url: str) -> None:
        with httpx.Client(
            headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_S, verify=TLS
        ) as client:
            while not self._stop.is_set():
                try:
                    answer = client.post(f"{url}/v1/collect", json=[sample() for _ in range(AT_ONCE)])
                except httpx.TransportError:
                    return  # it was killed
                assert answer.status_code in (202, 429), answer.text
                self.accepted[url] += AT_ONCE * (answer.status_code == 202)
                time.sleep(0.25)  # who is refused again and again is made to wait

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began


@pytest.fixture
def first(stack: Settings) -> Iterator[str]:
    """The address of an API in this process."""
    with with_settings(API__RATE_LOOK_SECONDS=LOOK_S), served() as api:
        yield api.url


@pytest.fixture
def second(stack: Settings) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """An API process of its own, with its address."""
    variables = {"RATE_LOOK_SECONDS": LOOK_S, "ACCESS_LOG": False}
    with service_process("pulse_api.http.server", "API", **variables) as api:
        yield api


def test_two_processes_hold_a_rate_together_and_one_that_is_killed_leaves_its_part(
    first: str, second: tuple[str, "subprocess.Popen[bytes]"]
) -> None:
    owner = make_owner()
    key = keys.issue_key(owner.tenant, "test", [KeyScope.COLLECT]).text
    quotas.set_limits(owner.tenant, events_per_second=RATE)
    other, killed = second

    def most(senders: Senders) -> float:
        """What the docs allow: the rate, a second's worth at once, and as much again for two looks."""
        return RATE * (senders.seconds + 1 + 2 * LOOK_S) + 2 * AT_ONCE

    def alone(senders: Senders) -> bool:
        """Whether the first process lets through more than any equal part, which is a half at most."""
        began, before = senders.seconds, senders.accepted[first]
        time.sleep(2)
        return senders.accepted[first] - before > 0.6 * RATE * (senders.seconds - began)

    with Senders(key, *[first] * 4) as senders:
        wait(lambda: alone(senders), "one process alone has not the whole rate")
    with Senders(key, *[first, other] * 4) as senders:
        wait(lambda: senders.seconds > 5, "")
        assert sum(senders.accepted.values()) <= most(senders)
        assert min(senders.accepted[url] for url in (first, other)) > 0
        killed.send_signal(signal.SIGKILL)
        wait(lambda: alone(senders), "the part of the process that was killed is nobody's")
        assert sum(senders.accepted.values()) <= most(senders)
