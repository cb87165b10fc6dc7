"""Pace: of one address, one request begins in each pass of the event loop; those of others go between.

Whoever sends a thousand requests at once has each of them wait for the ones before it. Nobody else does, and
nothing is slower: the loop's next pass comes as soon as it has nothing better to do.
"""

import asyncio
from collections import deque

from starlette.types import Scope


class Pace:
    """Use from the event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By address of which a request has begun in this pass, or wants to."""

    async def begin(self, scope: Scope) -> None:
        """Wait until the request may begin."""
        client = scope.get("client")
        address = client[0] if client else ""
        loop = asyncio.get_running_loop()
        if (queue := self._waiting.get(address)) is None:
            self._waiting[address] = deque()
            loop.call_soon(self._next, address)
            return
        turn = loop.create_future()
        queue.append(turn)
        await turn

    def _next(self, address: str) -> None:
        queue = self._waiting[address]
        while queue:
            turn = queue.popleft()
            if not turn.done():  # else its client has left
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._next, address)
                return
        del self._waiting[address]
