"""One tenant asks for more than it gets: its neighbours, and who watches, do not notice."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import pytest
from fix_http import Api, Caller, sample

from pulse_pipelines.domain.quota import Limits
from pulse_pipelines.registry import quotas
from pulse_resources.settings import load_settings

AT_ONCE = 60
PREVIEW = "/v1/datasets/orders/preview"
EVERYTHING = (PREVIEW, "/v1/datasets/orders/summary", "/v1/dead-letters", "/v1/datasets", "/v1/usage")


@pytest.mark.parametrize(
    ("path", "module", "work"),
    [
        (PREVIEW, "pulse_api.http.routes.preview", "read_preview"),
        ("/v1/datasets/orders/summary", "pulse_api.http.routes.summary", "read_summary"),
    ],
)
def test_who_asks_sixty_times_at_once_holds_up_himself(
    api: Api,
    new_caller: Callable[..., Caller],
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    module: str,
    work: str,
) -> None:
    greedy, neighbour = new_caller(), new_caller()
    real, go_on = getattr(import_module(module), work), threading.Event()

    def endless(tenant: Any, *args: Any, **kwargs: Any) -> Any:
        if tenant == greedy.owner.tenant:
            go_on.wait(60)
        return real(tenant, *args, **kwargs)

    monkeypatch.setattr(import_module(module), work, endless)
    refused, seen = threading.Semaphore(0), Counter[int]()

    def ask(_: int) -> None:
        answer = greedy.http.get(path)
        seen[answer.status_code] += 1
        if answer.status_code == 429:
            assert (answer.json()["type"], answer.headers["retry-after"]) == ("urn:pulse:problem:busy", "1")
            refused.release()

    settings = load_settings().api
    running = settings.preview_parallelism if path == PREVIEW else settings.parallelism
    taken = running // 2 + settings.max_waiting
    with ThreadPoolExecutor(AT_ONCE) as threads:
        try:
            asked = threads.map(ask, range(AT_ONCE))
            for _ in range(AT_ONCE - taken):
                assert refused.acquire(timeout=30), "it is said at once"
            assert seen == {429: AT_ONCE - taken}
            for other in EVERYTHING:
                assert neighbour.http.get(other).status_code == 200
            for watched in ("/healthz", "/readyz"):
                assert neighbour.http.get(watched).status_code == 200
            assert neighbour.collect(sample()).status_code == 202
            assert seen == {429: AT_ONCE - taken}, "all of this while the others still waited"
        finally:
            go_on.set()
        list(asked)
    assert sum(seen.values()) == AT_ONCE
    assert seen.keys() <= {200, 429, 503}


def test_events_that_are_refused_count_against_the_rate(caller: Caller) -> None:
    quotas.set_limits(caller.owner.tenant, Limits(events_per_second=10))
    wrong = [sample(country=7) for _ in range(200)]
    assert caller.collect(wrong).status_code == 422
    answer = caller.collect(sample())
    assert (answer.status_code, answer.json()["type"]) == (429, "urn:pulse:problem:rate-exceeded")
    assert int(answer.headers["retry-after"]) > 10
