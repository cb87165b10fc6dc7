"""How a client sends: the address, the key, bounds, times and retries, for both clients alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from pulse_client.batching import Batch, batches
from pulse_client.delivery import Deadline, Delivery, Retries
from pulse_client.encoding import Event
from pulse_client.version import __version__
from pulse_client.words import clean

_KEY = re.compile(r"[\x21-\x7e]+")
PATH = "/v1/collect"
TIMEOUT_S = 120.0
REQUEST_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Plan:
    """The arguments of a client, but its transport; see `Client`."""

    url: str
    key: str = field(repr=False)
    timeout: float
    request_timeout: float
    retries: Retries
    max_events: int
    max_bytes: int

    def __post_init__(self) -> None:
        """Raises ValueError: the url is not the address of an API, or the key has what no key has."""
        try:
            is_address = self.address.scheme in ("http", "https") and bool(self.address.host)
        except httpx.InvalidURL:
            is_address = False
        if not is_address:
            address = clean(repr(self.url), 200)
            raise ValueError(f"{address} is not the address of an API, such as https://pulse.example.com")
        # A library would quote the header, and the key with it.
        if not _KEY.fullmatch(self.key.strip()):
            raise ValueError("the key is empty, or has spaces or characters other than those of ASCII")

    @property
    def address(self) -> httpx.URL:
        return httpx.URL(self.url.rstrip("/") + PATH)

    def batches(self, events: Event | Iterable[Event]) -> Iterator[Batch]:
        """The requests of one event or many."""
        is_one = isinstance(events, (Mapping, bytes)) or hasattr(events, "get_attributes")
        many: Iterable[Event] = [events] if is_one else events  # type: ignore[list-item, assignment]
        return batches(many, max_events=self.max_events, max_bytes=self.max_bytes)

    def deadline(self, timeout: float | None) -> Deadline:
        """The end of a call that begins now."""
        return Deadline(self.timeout if timeout is None else timeout)

    def delivery(self, batch: Batch, deadline: Deadline) -> Delivery:
        return Delivery(batch, self.retries, deadline)

    def arguments(self, batch: Batch, body: bytes, delivery: Delivery) -> dict[str, Any]:
        """Arguments of httpx for the next attempt; the headers hold the key."""
        headers = {
            "Accept-Encoding": "identity",
            "Authorization": f"Bearer {self.key.strip()}",
            "Content-Encoding": "gzip",
            "Content-Type": batch.media_type,
            "User-Agent": f"pulse-client/{__version__}",
        }
        timeout = delivery.request_timeout(self.request_timeout)
        return {"url": self.address, "content": body, "headers": headers, "timeout": timeout}
