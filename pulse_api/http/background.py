"""Background work that runs as long as the server, whatever errors it raises."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

AGAIN_S = 1.0
"""Seconds after which work that an error has ended begins again."""

_log = logging.getLogger("pulse.api")


async def run_forever(work: Callable[[], Awaitable[None]]) -> None:
    """Do work that never returns; after an error that it does not handle, log it and begin again."""
    while True:
        try:
            await work()
        except Exception:
            _log.exception("%s begins again", getattr(work, "__qualname__", work))
        await asyncio.sleep(AGAIN_S)
