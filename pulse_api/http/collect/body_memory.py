"""Bytes of bodies in memory: of all requests under way, and of each tenant."""

from collections import Counter
from typing import Self

from pulse_api.http.admission.turns import Whom, busy


class BodyHolding:
    """Bytes that one request holds, released at the end of its block."""

    def __init__(self, memory: "BodyMemory", whom: Whom) -> None:
        self._memory = memory
        self._whom = whom
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.remove(self._whom, self._bytes)

    def add(self, count: int) -> None:
        """Hold more bytes. Raises ProblemError: 429, beyond the tenant's limit; 503, beyond the total."""
        self.count(count)
        self._memory.check(self._whom)

    def count(self, count: int) -> None:
        """Hold more bytes without a check: they are in memory already and cannot be refused."""
        self._bytes += count
        self._memory.count(self._whom, count)


class BodyMemory:
    """Counts held bytes, in total and by tenant. Use from the event loop.

    Args:
        most: maximum bytes in total.
        most_of_one: maximum bytes of one tenant.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._all = 0
        self._by: Counter[Whom] = Counter()

    def of(self, whom: Whom) -> BodyHolding:
        """An empty holding for a request of this tenant."""
        return BodyHolding(self, whom)

    def count(self, whom: Whom, count: int) -> None:
        """Add bytes, including those for which a request is refused, until that request ends."""
        self._all += count
        self._by[whom] += count

    def check(self, whom: Whom) -> None:
        """Check both limits. Raises ProblemError: 429, beyond the tenant's; 503, beyond the total."""
        if self._by[whom] > self._most_of_one:
            raise busy(429, f"bodies of the tenant's requests have more than {self._most_of_one:,} bytes")
        if self._all > self._most:
            raise busy(503, f"bodies of all requests have more than {self._most:,} bytes")

    def remove(self, whom: Whom, count: int) -> None:
        """Subtract released bytes."""
        self._all -= count
        self._by[whom] -= count
        if not self._by[whom]:
            del self._by[whom]
