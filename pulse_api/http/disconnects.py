"""Work for a caller who may leave: it ends when the caller does."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

WorkResult = TypeVar("WorkResult")


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, WorkResult]) -> WorkResult:
    """Do some work, and cancel it when the caller disconnects first.

    Args:
        receive: of the request, whose body has been read; nothing else may receive from it meanwhile.

    Raises:
        ClientDisconnect: the caller has left; the work has ended. Besides, whatever the work raises.
    """
    doing, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientDisconnect
        return doing.result()
    finally:
        leaving.cancel()
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
