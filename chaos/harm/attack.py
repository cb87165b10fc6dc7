"""What an attack is, what an attacker knows, and the ways to send much."""

import asyncio
import resource
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat

from chaos.harm import wire
from chaos.harm.wire import CLOSED, Answer, Link
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources.niceness import begin_session

SOURCE = "127.0.0.2"
"""Attackers come from an address that is not the neighbour's."""
ANSWER_S = 60.0
"""That an answer may take when the attack is over: longer than Pulse lets anybody wait for his turn."""
OPEN = "open at the end"
MAX_FILES = 8_192


@dataclass(frozen=True)
class Target:
    """What an attacker knows of Pulse."""

    tenant: str
    """His own slug."""
    keys: Mapping[str, str]
    """His tenant's, by scopes: `collect`, `manage` ..."""
    api: int
    """Port of the HTTP API."""
    room: int | None = None
    """Port of the control room, where it runs."""
    session: str = ""
    """Cookie of an operator who has the control room open in a browser ..."""
    token: str = field(default="", repr=False)
    """... and the token of one who does what somebody told him."""
    kafka: str = ""
    spark: str = ""


class Attacker:
    """Attacks a target for some time, and counts what comes back. Use it in one event loop."""

    def __init__(self, target: Target, seconds: float) -> None:
        self.target = target
        self.seen: Counter[str] = Counter()
        self._ends = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds until it has been long enough."""
        return self._ends - time.monotonic()

    def key(self, scopes: str) -> str:
        return self.target.keys[scopes]

    async def flood(
        self, requests: Iterator[bytes] | bytes, connections: int = 1, *, keep: bool = True, port: int = 0
    ) -> None:
        """Send requests over some connections, each one after the other.

        Args:
            requests: to send, without end; or one that is repeated.
            connections: at a time.
            keep: whether to use them again.
            port: of the API, if not given.
        """
        source = repeat(requests) if isinstance(requests, bytes) else requests
        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(self._send(source, keep, port or self.target.api))

    async def _send(self, requests: Iterator[bytes], keep: bool, port: int) -> None:
        link: Link | None = None
        while self.left_s > 0:
            try:
                if link is None or not link.usable:
                    link = await Link.to(port, SOURCE)
                answer = await self.counted(link, next(requests))
            except OSError:
                self.seen["refused"] += 1
                await asyncio.sleep(0.05)
                continue
            if answer is None or answer.last or not keep:
                link.close()
                link = None

    async def counted(self, link: Link, request: bytes = b"") -> Answer | None:
        """Send a request, wait for an answer, and count it; None if there was none."""
        try:
            async with asyncio.timeout(max(0.0, self.left_s) + ANSWER_S):
                answer = await link.ask(request)
        except TimeoutError:
            self.seen["no answer"] += 1
        except (OSError, EOFError):
            self.seen[CLOSED] += 1
        else:
            self.seen[answer.said] += 1
            return answer
        return None

    async def held(self, link: Link, request: bytes) -> None:
        """Send a request, and count its answer or, when it has been long enough, that there is none."""
        answered = asyncio.create_task(self.counted(link, request))
        await asyncio.wait([answered], timeout=max(0.0, self.left_s))
        if not answered.done():
            answered.cancel()
            self.seen[OPEN] += 1

    async def ask(
        self, method: str, path: str, scopes: str | None = None, body: object = b"", **headers: str
    ) -> Answer | None:
        """One request of the API over a connection of its own, counted."""
        link = await Link.to(self.target.api, SOURCE)
        try:
            key = None if scopes is None else self.key(scopes)
            return await self.counted(link, wire.request(method, path, key, body, **headers))
        finally:
            link.close()


@dataclass(frozen=True)
class Attack:
    """One kind of attack."""

    name: str
    key: str
    """What it takes, in words: a key of which scopes."""
    act: Callable[[Attacker], Awaitable[None]]
    may: frozenset[str]
    """What it may get: statuses, and the words `closed`, `refused` and `open`."""
    prepare: Callable[[Tenant], None] | None = None
    """What must have been there for a while."""
    room: bool = False
    """Whether it is of the control room."""

    def wrong(self, seen: Mapping[str, int]) -> list[str]:
        """What came back that should not have."""
        bad = [what for what in seen if what.split()[0] not in self.may or "unclear" in what]
        return [f"the attacker got {seen[what]:,} × {what}" for what in bad] or (
            [] if seen else ["the attacker got nothing"]
        )


def may(*what: str | int) -> frozenset[str]:
    """What an attack may get."""
    return frozenset(map(str, what))


def aside() -> None:
    """Have this process use what the others leave of the processors: attackers are on other machines."""
    begin_session(19)
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_FILES, MAX_FILES))


def carry_out(act: Callable[[Attacker], Awaitable[None]], target: Target, seconds: float) -> dict[str, int]:
    """Attack, in a process for it; returns what came back, and how often."""

    async def attack() -> dict[str, int]:
        attacker = Attacker(target, seconds)
        await act(attacker)
        return dict(attacker.seen)

    return asyncio.run(attack())
