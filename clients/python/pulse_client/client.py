"""The client for services that wait for the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import httpx

from pulse_client.batching import MAX_BYTES, MAX_EVENTS, Batch
from pulse_client.delivery import Deadline, Delivery, Retries, with_refusals
from pulse_client.encoding import Event
from pulse_client.errors import note_partial
from pulse_client.plan import REQUEST_TIMEOUT_S, TIMEOUT_S, Plan
from pulse_client.results import SendResult


class Client:
    """Connections to one Pulse API with one tenant's key; threads may share it, processes may not.

    Args:
        url: address of the API, such as https://pulse.example.com.
        key: a key of the tenant with the scope `collect`.
        timeout: seconds that a call may take with its retries; `math.inf` does not limit it.
        request_timeout: seconds that one attempt may wait for the network.
        retries: how often, and with which pauses.
        max_events: events of a request.
        max_bytes: bytes of a request before compression; a larger event goes alone.
        http: a client of httpx with your own proxies or certificates; it is closed with this one.
        sleep: waits between attempts.
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
        http: httpx.Client | None = None,
        sleep: Callable[[float], None] = time.sleep,
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
        self._http = http or httpx.Client()
        self._sleep = sleep

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def send(self, events: Event | Iterable[Event], *, timeout: float | None = None) -> SendResult:
        """Send one event or many, in requests one after the other, and wait for the acknowledgement of each.

        Events are read while they are sent: they may come from a generator.

        Args:
            timeout: seconds for this call; by default, those of the client.

        Raises:
            PulseClientError: a request failed as a whole; `partial` is the result of those before it.
            Exception: what the iterable of events raises, with the same attribute `partial`: so many of the
                first events were sent, and none after them.
        """
        deadline = self._plan.deadline(timeout)
        results: list[SendResult] = []
        try:
            for batch in self._plan.batches(events):
                results.append(self._deliver(batch, deadline))
        except BaseException as error:  # of a request, or of the caller's own iterable
            note_partial(error, results)
            raise
        return SendResult.total(results)

    def send_batch(self, batch: Batch, *, timeout: float | None = None) -> SendResult:
        """Send the events of one request, for callers that group them themselves with `batches`.

        Raises:
            PulseClientError: the request failed as a whole.
        """
        return self._deliver(batch, self._plan.deadline(timeout))

    def _deliver(self, batch: Batch, deadline: Deadline) -> SendResult:
        if not batch.events:
            return with_refusals(SendResult(), [], batch)
        body, delivery = batch.body(), self._plan.delivery(batch, deadline)
        while True:
            try:
                answer = self._post(delivery, self._plan.arguments(batch, body, delivery))
            except httpx.TransportError as error:
                outcome: SendResult | float = delivery.after_silence(error)
            else:
                outcome = delivery.after_answer(answer)
            if isinstance(outcome, SendResult):
                return outcome
            self._sleep(outcome)

    def _post(self, delivery: Delivery, arguments: dict[str, Any]) -> httpx.Response:
        body = delivery.answer_body()
        with self._http.stream("POST", **arguments) as answer:
            for piece in answer.iter_bytes():
                body.add(piece)
        return body.response(answer)
