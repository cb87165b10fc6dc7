"""Connection limits: number in total and per address, and checks of their deadlines."""

import asyncio
from collections import defaultdict
from typing import Protocol

from pulse_api.http import process_metrics
from pulse_api.http.admission import refusals
from pulse_api.http.admission.addresses import RecentActivity, address_of
from pulse_api.http.problems import ProblemError
from pulse_resources.settings.api_settings import ApiSettings

CHECK_INTERVAL_S = 1.0
"""Seconds between two checks of all connections, and so the precision of timeouts."""


class BoundedConnection(Protocol):
    """A connection that is counted."""

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a request, or for the end of its head: closing it loses nothing."""

    def check_deadlines(self, now: float) -> None:
        """Close the connection if a deadline has passed."""

    def give_way(self) -> None:
        """Close the connection, which is waiting, for another address."""


class Connections:
    """Connections of one port, counted by address and checked every second. Use from the event loop.

    Args:
        settings: timeouts and size limits.
        most: connections in total; a further one is answered with 503.
        most_per_address: connections of one address; 0: no limit.
    """

    def __init__(self, settings: ApiSettings, most: int, most_per_address: int) -> None:
        self.settings = settings
        self.ending = False
        """Whether the server ends: the next answer on a connection is its last."""
        self._most = most
        self._most_per_address = most_per_address
        self._open: dict[BoundedConnection, str] = {}
        self._by_address: defaultdict[str, dict[BoundedConnection, None]] = defaultdict(dict)
        """Connections of each address, the oldest first."""
        self.counts_addresses = most_per_address > 0
        """Whether a connection is one client's; behind a proxy, requests of many follow each other on it."""
        self._recent = RecentActivity()
        self._checking = False

    def add(self, connection: BoundedConnection, host: str) -> ProblemError | None:
        """Count a connection; beyond a limit it is not counted, and the problem is returned."""
        address = address_of(host)
        count = len(self._by_address.get(address, ()))
        if self.counts_addresses and count >= self._most_per_address:
            detail = f"there are {self._most_per_address:,} connections from this address already"
            return refusals.busy("connections-of-address", detail)
        if len(self._open) >= self._most and not self._make_room(count):
            return refusals.busy("connections", f"there are {self._most:,} connections already")
        self._open[connection] = address
        self._by_address[address][connection] = None
        if self.counts_addresses:
            self._recent.opened(address)
        process_metrics.CONNECTIONS.inc()
        if not self._checking:
            self._checking = True
            asyncio.get_running_loop().call_later(CHECK_INTERVAL_S, self._check_all)
        return None

    def remove(self, connection: BoundedConnection) -> None:
        """Stop counting a connection, if it was counted."""
        if (address := self._open.pop(connection, None)) is None:
            return
        process_metrics.CONNECTIONS.dec()
        del self._by_address[address][connection]
        if not self._by_address[address]:
            del self._by_address[address]

    def _make_room(self, count: int) -> bool:
        """Close the oldest waiting connection of the address with the most, for one that has `count`."""
        crowd = max(self._by_address.values(), key=len)
        if not self.counts_addresses or len(crowd) <= count + 1:
            return False
        oldest = next((connection for connection in crowd if connection.is_waiting), None)
        if oldest is None:
            return False
        self.remove(oldest)
        oldest.give_way()
        return True

    def refused(self, connection: BoundedConnection) -> None:
        """Count a refusal for the address of a connection."""
        if self.counts_addresses and (address := self._open.get(connection)) is not None:
            self._recent.refused(address)

    def wait_s(self, connection: BoundedConnection) -> float:
        """Seconds before a new connection is read."""
        return self._recent.wait_s(self._open.get(connection, ""), asyncio.get_running_loop().time())

    def _check_all(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._recent.rotate(now)
        for connection in list(self._open):
            connection.check_deadlines(now)
        self._checking = bool(self._open)
        if self._checking:
            loop.call_later(CHECK_INTERVAL_S, self._check_all)
