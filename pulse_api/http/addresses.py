"""Client addresses: recent connections and refusals of each, and how long its next connection waits."""

from collections import Counter
from ipaddress import IPv6Address, IPv6Network

MAX_REFUSED = 20
"""Refusals (401, 403, 413, 429), and requests that are none, in a second or two ..."""
MAX_OPENED = 50
"""... or connections: each costs as much as a small request. After those, what an address opens is read from
one after the other. Where one address may be everybody, behind a proxy, nothing is counted."""
APART_S = 0.04
"""Between the beginnings of two such connections."""
_IPV6_PREFIX = 64
"""Bits of an IPv6 address that one customer has for himself."""


class RecentActivity:
    """Connections and refusals by address, of the last second or two. Use from the event loop."""

    def __init__(self) -> None:
        self._refused: Counter[str] = Counter()
        self._refused_before: Counter[str] = Counter()
        self._opened: Counter[str] = Counter()
        self._opened_before: Counter[str] = Counter()
        self._last: dict[str, float] = {}
        """When the last of the connections that wait will begin."""

    def opened(self, address: str) -> None:
        """Count a connection."""
        self._opened[address] += 1

    def refused(self, address: str) -> None:
        """Count a refusal."""
        self._refused[address] += 1

    def wait_s(self, address: str, now: float) -> float:
        """Seconds for which a new connection is not read from: 0 within the limits, else until its turn."""
        refused = self._refused[address] + self._refused_before[address]
        opened = self._opened[address] + self._opened_before[address]
        if refused <= MAX_REFUSED and opened <= MAX_OPENED:
            return 0.0
        self._last[address] = max(now, self._last.get(address, now)) + APART_S
        return self._last[address] - now

    def look(self, now: float) -> None:
        """Forget all but what was counted since the look before; called every second."""
        self._refused_before, self._refused = self._refused, Counter()
        self._opened_before, self._opened = self._opened, Counter()
        self._last = {address: last for address, last in self._last.items() if last > now}


def address_of(host: str) -> str:
    """Whom a connection counts for: an IPv4 address, or a network of IPv6, where everybody has many."""
    if ":" not in host:
        return host
    address = IPv6Address(host)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((int(address), _IPV6_PREFIX), strict=False))
