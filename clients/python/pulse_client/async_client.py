"""The client for services that run on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import httpx

from pulse_client.batching import MAX_BYTES, MAX_EVENTS, Batch
from pulse_client.delivery import Deadline, Delivery, Retries, with_refusals
from pulse_client.encoding import Event
from pulse_client.errors import note_partial
from pulse_client.plan import REQUEST_TIMEOUT_S, TIMEOUT_S, Plan
from pulse_client.results import SendResult

_SHORT_BYTES = 64 * 1024
"""Up to here a body is compressed in the event loop; a thread would cost more."""


class AsyncClient:
    """Connections to one Pulse API with one tenant's key; the tasks of one event loop may share it.

    Arguments, results and errors are those of `Client`; `http` is an `httpx.AsyncClient`.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout: float = TIMEOUT_S,
        request_timeout: float = REQUEST_TIMEOUT_S,
        retries: Retries = Retries(),  # noqa: B008 - it is frozen
        max_events: int = MAX_EVENTS,
        max_bytes: int = MAX_BYTES,
        http: httpx.AsyncClient | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._plan = Plan(
            url=url,
            key=key,
            timeout=timeout,
            request_timeout=request_timeout,
            retries=retries,
            max_events=max_events,
            max_bytes=max_bytes,
        )
        self._http = http or httpx.AsyncClient()
        self._sleep = sleep

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def send(self, events: Event | Iterable[Event], *, timeout: float | None = None) -> SendResult:
        """Send one event or many; see `Client.send`. A cancelled call may have sent some of them."""
        deadline = self._plan.deadline(timeout)
        results: list[SendResult] = []
        try:
            for batch in self._plan.batches(events):
                results.append(await self._deliver(batch, deadline))
        except BaseException as error:  # of a request, or of the caller's own iterable
            note_partial(error, results)
            raise
        return SendResult.total(results)

    async def send_batch(self, batch: Batch, *, timeout: float | None = None) -> SendResult:
        """Send the events of one request; see `Client.send_batch`."""
        return await self._deliver(batch, self._plan.deadline(timeout))

    async def _deliver(self, batch: Batch, deadline: Deadline) -> SendResult:
        if not batch.events:
            return with_refusals(SendResult(), [], batch)
        body = batch.body() if batch.size <= _SHORT_BYTES else await asyncio.to_thread(batch.body)
        delivery = self._plan.delivery(batch, deadline)
        while True:
            try:
                answer = await self._post(delivery, self._plan.arguments(batch, body, delivery))
            except httpx.TransportError as error:
                outcome: SendResult | float = delivery.after_silence(error)
            else:
                outcome = delivery.after_answer(answer)
            if isinstance(outcome, SendResult):
                return outcome
            await self._sleep(outcome)

    async def _post(self, delivery: Delivery, arguments: dict[str, Any]) -> httpx.Response:
        body = delivery.answer_body()
        async with self._http.stream("POST", **arguments) as answer:
            async for piece in answer.aiter_bytes():
                body.add(piece)
        return body.response(answer)
