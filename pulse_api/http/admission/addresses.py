"""Client addresses: recent connections and refusals per address, and the delay of its next connection."""

from collections import Counter
from ipaddress import IPv6Address, IPv6Network

MAX_REFUSED = 20
"""Refusals (401, 403, 413, 429) and malformed requests in one to two seconds ..."""
MAX_OPENED = 50
"""... or connections: each costs as much as a small request. Beyond either limit, new connections of the
address are read one after the other. Behind a proxy, where clients share an address, nothing is counted."""
APART_S = 0.04
"""Seconds between the starts of two delayed connections."""
_IPV6_PREFIX = 64
"""Bits of the IPv6 network that is assigned to one customer."""


class RecentActivity:
    """Connections and refusals by address in the last one to two seconds. Use from the event loop."""

    def __init__(self) -> None:
        self._refused: Counter[str] = Counter()
        self._refused_before: Counter[str] = Counter()
        self._opened: Counter[str] = Counter()
        self._opened_before: Counter[str] = Counter()
        self._last: dict[str, float] = {}
        """By address: when the last delayed connection will start."""

    def opened(self, address: str) -> None:
        """Count a connection."""
        self._opened[address] += 1

    def refused(self, address: str) -> None:
        """Count a refusal."""
        self._refused[address] += 1

    def wait_s(self, address: str, now: float) -> float:
        """Seconds before a new connection is read: 0 within the limits, else until its turn."""
        refused = self._refused[address] + self._refused_before[address]
        opened = self._opened[address] + self._opened_before[address]
        if refused <= MAX_REFUSED and opened <= MAX_OPENED:
            return 0.0
        self._last[address] = max(now, self._last.get(address, now)) + APART_S
        return self._last[address] - now

    def rotate(self, now: float) -> None:
        """Drop counts from before the previous rotation; called every second."""
        self._refused_before, self._refused = self._refused, Counter()
        self._opened_before, self._opened = self._opened, Counter()
        self._last = {address: last for address, last in self._last.items() if last > now}


def address_of(host: str) -> str:
    """The address that a connection counts for: an IPv4 address, or an IPv6 /64, where a host has many."""
    if ":" not in host:
        return host
    address = IPv6Address(host)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((int(address), _IPV6_PREFIX), strict=False))
