"""Bodies in memory, in bytes: of all requests under way, and of one tenant's."""

from collections import Counter
from typing import Self

from pulse_api.http.turns import Whom, busy


class Holding:
    """What one request holds, until its block ends."""

    def __init__(self, held: "Held", whom: Whom) -> None:
        self._held = held
        self._whom = whom
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.remove(self._whom, self._bytes)

    def add(self, count: int) -> None:
        """Hold more. Raises ProblemError: 429, too much of the tenant; 503, too much in all."""
        self.count(count)
        self._held.check(self._whom)

    def count(self, count: int) -> None:
        """Hold more, of what is there already and cannot be refused."""
        self._bytes += count
        self._held.count(self._whom, count)


class Held:
    """Use from the event loop.

    Args:
        most: bytes in all.
        most_of_one: bytes of one tenant.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._all = 0
        self._by: Counter[Whom] = Counter()

    def of(self, whom: Whom) -> Holding:
        """Nothing yet of a request of this tenant."""
        return Holding(self, whom)

    def count(self, whom: Whom, count: int) -> None:
        """Count bytes, those of a request that is refused for them, too, until it ends."""
        self._all += count
        self._by[whom] += count

    def check(self, whom: Whom) -> None:
        """Raises ProblemError: 429, too much of the tenant; 503, too much in all."""
        if self._by[whom] > self._most_of_one:
            raise busy(429, f"bodies of the tenant's requests have more than {self._most_of_one:,} bytes")
        if self._all > self._most:
            raise busy(503, f"bodies of all requests have more than {self._most:,} bytes")

    def remove(self, whom: Whom, count: int) -> None:
        """Count bytes no longer."""
        self._all -= count
        self._by[whom] -= count
        if not self._by[whom]:
            del self._by[whom]
