"""The client for services that wait for the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import httpx

from pulse_client.batching import MAX_BYTES, MAX_EVENTS, Batch, batches
from pulse_client.delivery import (
    REQUEST_TIMEOUT_S,
    TIMEOUT_S,
    Deadline,
    Delivery,
    Retries,
    address,
    headers,
    with_refusals,
)
from pulse_client.encoding import Event
from pulse_client.errors import PulseClientError
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
        self._address = address(url)
        self._headers = headers(key)
        self._timeout = timeout
        self._request_timeout = request_timeout
        self._retries = retries
        self._max_events = max_events
        self._max_bytes = max_bytes
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
        """
        deadline = Deadline(self._timeout if timeout is None else timeout)
        results: list[SendResult] = []
        try:
            for batch in batches(as_events(events), max_events=self._max_events, max_bytes=self._max_bytes):
                results.append(self._deliver(batch, deadline))
        except PulseClientError as error:
            error.partial = SendResult.total(results)
            raise
        return SendResult.total(results)

    def send_batch(self, batch: Batch, *, timeout: float | None = None) -> SendResult:
        """Send the events of one request, for callers that group them themselves with `batches`.

        Raises:
            PulseClientError: the request failed as a whole.
        """
        return self._deliver(batch, Deadline(self._timeout if timeout is None else timeout))

    def _deliver(self, batch: Batch, deadline: Deadline) -> SendResult:
        if not batch.events:
            return with_refusals(SendResult(), [], batch)
        body, delivery = batch.body(), Delivery(batch, self._retries, deadline)
        content_type = {"Content-Type": batch.media_type}
        while True:
            try:
                answer = self._http.post(
                    self._address,
                    content=body,
                    headers={**self._headers, **content_type},
                    timeout=delivery.request_timeout(self._request_timeout),
                )
            except httpx.TransportError as error:
                outcome: SendResult | float = delivery.after_silence(error)
            else:
                outcome = delivery.after_answer(answer)
            if isinstance(outcome, SendResult):
                return outcome
            self._sleep(outcome)


def as_events(events: Event | Iterable[Event]) -> Iterable[Event]:
    """One event as a list of it; many as they are."""
    is_one = isinstance(events, (Mapping, bytes)) or hasattr(events, "get_attributes")
    return [events] if is_one else events  # type: ignore[list-item, return-value]
