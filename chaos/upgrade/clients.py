"""Clients of a service with several processes, as behind a load balancer: how each request ended."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from chaos.sent import REQUEST_S, Collected
from chaos.surroundings import TLS
from chaos.traffic import PERIOD_S

NOT_LISTENING = "no process of it listened"
Answers = Counter[tuple[str, str]]
"""Number of requests by what they were for and how they ended."""


@dataclass
class Front:
    """The processes of one service; a request goes to the first that listens."""

    urls: list[str]
    answers: Answers = field(default_factory=Answers)

    def request(self, subject: str, method: str, path: str, **arguments: object) -> httpx.Response | None:
        """Send a request; None: it was not answered."""
        ended = NOT_LISTENING
        for url in list(self.urls):
            try:
                answer = httpx.request(method, url + path, timeout=REQUEST_S, verify=TLS, **arguments)  # type: ignore[arg-type]
            except httpx.ConnectError:
                continue
            except httpx.TransportError as error:
                ended = type(error).__name__
                break
            retry = " with Retry-After" if "Retry-After" in answer.headers else ""
            self.answers[subject, f"{answer.status_code}{retry}"] += 1
            return answer
        self.answers[subject, ended] += 1
        return None

    def unexpected(self) -> Iterator[tuple[str, str, int]]:
        """Subject, ending and number of requests that ended neither well nor with a 503 and Retry-After."""
        for (subject, ended), times in self.answers.items():
            if not ended.startswith("2") and ended != "503 with Retry-After":
                yield subject, ended, times


@dataclass
class Balanced(Collected):
    """A sender through a front."""

    front: Front = field(default_factory=lambda: Front([]))

    def post(self, body: bytes, headers: dict[str, str]) -> httpx.Response | None:
        return self.front.request("collect", "POST", "/v1/collect", content=body, headers=headers)


@dataclass(frozen=True)
class Read:
    """A request that is repeated: what it is for, and how it is sent."""

    front: Front
    subject: str
    method: str
    path: str
    key: str = field(repr=False)
    json: dict[str, object] | None = None


@contextmanager
def reading(reads: Sequence[Read]) -> Iterator[None]:
    """Send each request about twice a second while the block runs."""
    ended = threading.Event()

    def repeat(read: Read) -> None:
        headers = {"Authorization": f"Bearer {read.key}"}
        while not ended.wait(PERIOD_S):
            read.front.request(read.subject, read.method, read.path, json=read.json, headers=headers)

    threads = [threading.Thread(target=repeat, args=(read,), daemon=True) for read in reads]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
