"""Pacing: per client address, at most one request begins in each pass of the event loop.

A client that sends a thousand requests at once delays only its own. Throughput is unaffected: the loop's next
pass follows immediately when nothing else is ready.
"""

import asyncio
from collections import deque

from starlette.types import Scope


class Pace:
    """Paces requests by client address. Use from the event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Addresses with a request that began in this pass, or waits to begin."""

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
            if not turn.done():  # else its client has disconnected
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._next, address)
                return
        del self._waiting[address]
