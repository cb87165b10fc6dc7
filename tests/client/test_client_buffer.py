"""EventBuffer: what it promises to the caller, whatever the server does."""

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from support.client import BUSY, accepted, event

from chaos.waiting import PATIENCE_S, wait
from pulse_client import Client, EventBuffer, Loss, Retries, Stats

LONG_S = 10 * PATIENCE_S
"""An age that no event of a test reaches."""


class Server:
    """Accepts events by a function of its own, and can be kept from answering."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.sizes: list[int] = []
        self.answer: Callable[[int], httpx.Response] = accepted

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.sizes.append(len(gunzip(request).splitlines()))
        assert self.open.wait(PATIENCE_S)
        return self.answer(self.sizes[-1])


def gunzip(request: httpx.Request) -> bytes:
    return gzip.decompress(request.content)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.open.set()


@pytest.fixture
def losses() -> list[Loss]:
    return []


@pytest.fixture
def new_buffer(server: Server, losses: list[Loss]) -> Iterator[Callable[..., EventBuffer]]:
    buffers: list[EventBuffer] = []

    def client(url: str, key: str, **options: Any) -> Client:
        http = httpx.Client(transport=httpx.MockTransport(server))
        return Client(url, key, http=http, retries=Retries(first_pause_s=0.001), **options)

    def make(**options: Any) -> EventBuffer:
        options = {"max_age": LONG_S, "on_loss": losses.append, "client": client} | options
        buffers.append(EventBuffer("http://pulse", "the-key", **options))
        return buffers[-1]

    yield make
    server.open.set()
    for buffer in buffers:
        buffer.close(PATIENCE_S)


New = Callable[..., EventBuffer]


def test_events_are_sent_when_they_are_old(new_buffer: New) -> None:
    buffer = new_buffer(max_age=0.001)
    buffer.send(event())
    wait(lambda: buffer.stats.accepted == 1, "it was not sent")


def test_events_are_sent_when_they_fill_a_request(new_buffer: New, server: Server) -> None:
    buffer = new_buffer()
    for n in range(501):
        buffer.send(event(f"e-{n}"))
    wait(lambda: buffer.stats.accepted == 500, "a full batch was not sent")
    assert buffer.stats.waiting == 1
    assert server.sizes == [500]


def test_flush_sends_the_waiting_events(new_buffer: New, server: Server) -> None:
    buffer = new_buffer()
    assert buffer.flush(0)
    for n in range(3):
        buffer.send(event(f"e-{n}"))
    assert buffer.flush(PATIENCE_S)
    assert buffer.stats == Stats(0, 3, 0, 0, 0, 0)
    assert server.sizes == [3]


def test_flush_ends_in_time_when_the_server_hangs(new_buffer: New, server: Server) -> None:
    server.open.clear()
    buffer = new_buffer()
    buffer.send(event())
    assert not buffer.flush(0.01)
    server.open.set()
    assert buffer.flush(PATIENCE_S)


@pytest.mark.parametrize("bounds", [{"max_events": 2}, {"max_bytes": 200}], ids=str)
def test_events_that_do_not_fit_are_dropped_and_reported(
    bounds: dict[str, int], new_buffer: New, server: Server, losses: list[Loss]
) -> None:
    """Events of a running request take their room until it ends."""
    server.open.clear()
    buffer = new_buffer(**bounds)
    for n in range(5):
        buffer.send(event(f"e-{n}"))
    assert (buffer.stats.waiting, buffer.stats.dropped) == (2, 3)
    server.open.set()
    assert buffer.flush(PATIENCE_S)
    buffer.send(event("e-5"))
    assert buffer.close(PATIENCE_S)
    assert buffer.stats == Stats(0, 3, 0, 0, 3, 0)
    assert {loss.reason for loss in losses} == {"full"}
    assert sum(loss.events for loss in losses) == 3


def test_events_that_pulse_refuses_are_reported_with_their_verdicts(
    new_buffer: New, server: Server, losses: list[Loss]
) -> None:
    server.answer = lambda events: accepted(events, refused=[0])
    buffer = new_buffer()
    for n in range(2):
        buffer.send(event(f"e-{n}"))
    buffer.send(event("nan", x=float("nan")))
    assert buffer.close(PATIENCE_S)
    assert buffer.stats == Stats(0, 1, 0, 2, 0, 0)
    verdicts = [verdict for loss in losses for verdict in loss.verdicts]
    assert {verdict.event_id for verdict in verdicts} == {"e-0", "nan"}


def test_an_outage_is_waited_out(new_buffer: New, server: Server, losses: list[Loss]) -> None:
    answers = [httpx.Response(503, json=BUSY)] * 3
    server.answer = lambda events: answers.pop() if answers else accepted(events)
    buffer = new_buffer()
    buffer.send(event())
    assert buffer.close(PATIENCE_S)
    assert (buffer.stats.accepted, losses) == (1, [])


def test_a_long_retry_after_is_not_cut_short(
    new_buffer: New, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulse_client.buffer._PAUSE_S", 0.001)
    answers = [httpx.Response(429, json=BUSY, headers={"Retry-After": "3600"})]
    server.answer = lambda events: answers.pop() if answers else accepted(events)
    buffer = new_buffer()
    buffer.send(event())
    assert not buffer.flush(0.1)
    assert not buffer.close(0.001)
    assert server.sizes == [1]


def test_a_wrong_key_loses_its_batch_with_a_reported_reason(
    new_buffer: New, server: Server, losses: list[Loss]
) -> None:
    server.answer = lambda events: httpx.Response(401, json={"detail": "no key", "fix": "Use another"})
    buffer = new_buffer()
    buffer.send(event())
    assert buffer.flush(PATIENCE_S)
    buffer.close(PATIENCE_S)
    assert losses == [Loss(1, "rejected", "no key. Use another")]


def test_close_gives_up_in_time(new_buffer: New, server: Server, losses: list[Loss]) -> None:
    server.open.clear()
    buffer = new_buffer()
    buffer.send(event())
    assert not buffer.close(0.01)
    server.open.set()
    assert [(loss.events, loss.reason) for loss in losses] == [(1, "unsent")]
    assert buffer.stats == Stats(0, 0, 0, 0, 1, 0)


class Hostile(dict[str, Any]):
    def get(self, *_: object) -> Any:
        raise RuntimeError("an event may be anything")


def test_no_exception_reaches_the_caller(new_buffer: New) -> None:
    """Neither events that raise, nor a function of the caller that fails, nor events after the end."""

    def fail(loss: Loss) -> None:
        raise RuntimeError("on_loss is the caller's")

    buffer = new_buffer(on_loss=fail)
    for wrong in (Hostile(specversion="1.0"), None, b""):
        buffer.send(wrong)  # type: ignore[arg-type]
    buffer.send(event())
    assert buffer.flush(PATIENCE_S)
    assert buffer.close(PATIENCE_S)
    buffer.send(event("late"))
    assert buffer.close(PATIENCE_S)
    assert buffer.stats == Stats(0, 1, 0, 2, 2, 0)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_of_a_fork_has_a_buffer_of_its_own(new_buffer: New, server: Server) -> None:
    """The parent sends what waited; the child neither has it nor hangs on the parent's locks."""
    buffer = new_buffer()
    buffer.send(event("parent"))
    with buffer._changed:  # another thread of the parent may have it at any time
        child = os.fork()
    if child == 0:
        code = 1
        try:
            empty = buffer.stats.waiting == 0
            buffer.send(event("child"))
            code = 0 if empty and buffer.close(PATIENCE_S) and buffer.stats.accepted == 1 else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert buffer.flush(PATIENCE_S)
    assert server.sizes == [1]


AT_EXIT = """
import httpx, pulse_client
def answer(request):
    print("sent", flush=True)
    return httpx.Response(202, json={"accepted": 1, "dead_lettered": 0, "refused": 0, "verdicts": []})
def client(*args, **options):
    return pulse_client.Client(*args, http=httpx.Client(transport=httpx.MockTransport(answer)), **options)
buffer = pulse_client.EventBuffer("http://pulse", "key", max_age=1e6, client=client)
buffer.send({"event_id": "e"})
"""


@pytest.mark.long
def test_a_normal_exit_sends_the_waiting_events() -> None:
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("sent\n", "")
