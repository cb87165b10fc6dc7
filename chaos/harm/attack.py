"""Attack: its description, an attacker's knowledge, and ways to send load."""

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
from pulse_resources.process.niceness import begin_session

SOURCE = "127.0.0.2"
"""Source address of attackers, which differs from the neighbour's."""
ANSWER_S = 60.0
"""Time limit for a response when the attack is over: longer than any wait in Pulse."""
OPEN = "open at the end"
MAX_FILES = 8_192


@dataclass(frozen=True)
class Target:
    """What an attacker knows about Pulse."""

    tenant: str
    """The attacker's own slug."""
    keys: Mapping[str, str]
    """His tenant's keys by scope: `collect`, `manage` ..."""
    api: int
    """Port of the HTTP API."""
    room: int | None = None
    """Port of the control room, if it runs."""
    session: str = ""
    """Session cookie of an operator who has the control room open in a browser ..."""
    token: str = field(default="", repr=False)
    """... and the token of an operator who follows an attacker's instructions."""
    kafka: str = ""
    spark: str = ""


class Attacker:
    """Attacks a target for some time and counts the responses. Use it in one event loop."""

    def __init__(self, target: Target, seconds: float) -> None:
        self.target = target
        self.counts: Counter[str] = Counter()
        self._ends = time.monotonic() + seconds

    @property
    def remaining_s(self) -> float:
        """Seconds until the attack ends."""
        return self._ends - time.monotonic()

    def key(self, scopes: str) -> str:
        return self.target.keys[scopes]

    async def flood(
        self, requests: Iterator[bytes] | bytes, connections: int = 1, *, keep: bool = True, port: int = 0
    ) -> None:
        """Send requests over several connections, sequentially on each.

        Args:
            requests: an endless iterator of requests, or one that is repeated.
            connections: number of concurrent connections.
            keep: whether to reuse connections.
            port: default: the API's.
        """
        source = repeat(requests) if isinstance(requests, bytes) else requests
        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(self._send(source, keep, port or self.target.api))

    async def _send(self, requests: Iterator[bytes], keep: bool, port: int) -> None:
        link: Link | None = None
        while self.remaining_s > 0:
            try:
                if link is None or not link.usable:
                    link = await Link.to(port, SOURCE)
                answer = await self.counted(link, next(requests))
            except OSError:
                self.counts["refused"] += 1
                await asyncio.sleep(0.05)
                continue
            if answer is None or answer.last or not keep:
                link.close()
                link = None

    async def counted(self, link: Link, request: bytes = b"") -> Answer | None:
        """Send a request, wait for the response, and count it; None if there was none."""
        try:
            async with asyncio.timeout(max(0.0, self.remaining_s) + ANSWER_S):
                answer = await link.ask(request)
        except TimeoutError:
            self.counts["no answer"] += 1
        except (OSError, EOFError):
            self.counts[CLOSED] += 1
        else:
            self.counts[answer.outcome] += 1
            return answer
        return None

    async def hold(self, link: Link, request: bytes) -> None:
        """Send a request, and count its response, or its absence at the end of the attack."""
        answered = asyncio.create_task(self.counted(link, request))
        await asyncio.wait([answered], timeout=max(0.0, self.remaining_s))
        if not answered.done():
            answered.cancel()
            self.counts[OPEN] += 1

    async def ask(
        self, method: str, path: str, scopes: str | None = None, body: object = b"", **headers: str
    ) -> Answer | None:
        """Send one API request over a new connection, and count its response."""
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
    """Key used by the attack, described by its scopes."""
    act: Callable[[Attacker], Awaitable[None]]
    may: frozenset[str]
    """Acceptable results: statuses, and the words `closed`, `refused` and `open`."""
    prepare: Callable[[Tenant], None] | None = None
    """Prepares data that the attack requires."""
    room: bool = False
    """Whether it targets the control room."""

    def wrong(self, counts: Mapping[str, int]) -> list[str]:
        """Results that were not acceptable, of the number of each result."""
        bad = [result for result in counts if result.split()[0] not in self.may or "unclear" in result]
        return [f"the attacker got {counts[result]:,} × {result}" for result in bad] or (
            [] if counts else ["the attacker got nothing"]
        )


def may(*results: str | int) -> frozenset[str]:
    """Acceptable results of an attack."""
    return frozenset(map(str, results))


def lower_priority() -> None:
    """Give this process the lowest priority: real attackers are on other machines."""
    begin_session(19)
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_FILES, MAX_FILES))


def carry_out(act: Callable[[Attacker], Awaitable[None]], target: Target, seconds: float) -> dict[str, int]:
    """Run an attack in its own process; returns the number of each result."""

    async def attack() -> dict[str, int]:
        attacker = Attacker(target, seconds)
        await act(attacker)
        return dict(attacker.counts)

    return asyncio.run(attack())
