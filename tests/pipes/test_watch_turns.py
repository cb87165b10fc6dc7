"""Sources that do not answer hold up the watch of their own tenant's pipes, not that of others."""

import threading
import uuid

import pytest

from chaos.waiting import PATIENCE_S
from pulse_pipelines.pipes import watch

Item = tuple[uuid.UUID, int]
HOSTILE, HONEST = uuid.uuid4(), [uuid.uuid4() for _ in range(5)]


def test_a_tenant_of_many_silent_sources_leaves_places_to_others() -> None:
    """None of them answers before all pipes of the others have been watched."""
    items = [(HOSTILE, number) for number in range(100)] + [(tenant, 0) for tenant in HONEST]
    watched, neighbours_done = list[Item](), threading.Event()

    def work(item: Item) -> None:
        if item[0] == HOSTILE:
            assert neighbours_done.wait(PATIENCE_S), "others wait for a place"
        else:
            watched.append(item)
            if len(watched) == len(HONEST):
                neighbours_done.set()

    done = list(watch.by_turns(items, lambda item: item[0], work))
    assert sorted(item for item, _ in done) == sorted(items)
    assert not any(error for _, error in done)


def test_of_tenants_with_as_many_under_way_the_one_that_waited_least_is_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "AT_A_TIME", 1)
    now, order = [0.0], list[uuid.UUID]()
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])

    def work(item: Item) -> None:
        order.append(item[0])
        now[0] += 10 if item[0] == HOSTILE else 1

    tenants = [HOSTILE, HONEST[0]]
    list(watch.by_turns([(t, n) for t in tenants for n in range(6)], lambda item: item[0], work))
    assert order.count(HOSTILE) == 6
    assert order[:7].count(HOSTILE) == 1


def test_an_error_is_given_with_its_item() -> None:
    def fail(item: Item) -> None:
        raise ValueError(item[1])

    done = list(watch.by_turns([(HOSTILE, n) for n in range(3)], lambda item: item[0], fail))
    assert sorted((item[1], str(error)) for item, error in done) == [(0, "0"), (1, "1"), (2, "2")]
