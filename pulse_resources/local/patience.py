"""How long a service may take to start: as long as it makes progress, and longer after a failed start.

On a machine that is too busy a start takes many times as long as usual. To end it for that and begin again
is work that leads nowhere and makes the machine busier, so only a start without progress is given up.

Progress is processor time, of all processes of the service. A service that waits for another by asking again
and again uses some, too, and so does one that is asked whether it is ready. That is accepted: to start it
again would make a dependency that is slow no faster, so it is given up at the bound only. One that waits
without computing looks hung, and is started again after its time-out.
"""

from collections.abc import Callable

PROGRESS = 0.01
"""Processor time that counts as progress, as a share of the time-out."""
LONGEST = 4
"""The time-out of a start doubles with each failed one before it, up to as many times the first."""
BOUND = 10
"""Time-outs after which a start is given up whatever it computes."""


class Patience:
    """Patience with one start of a service.

    Args:
        timeout: seconds without progress after which a first start is given up.
        attempt: 1, or more after failed starts.
        now: seconds, as in `lasts`.
    """

    def __init__(self, timeout: float, attempt: int, now: float) -> None:
        self._timeout = timeout * min(2 ** (attempt - 1), LONGEST)
        # A later start has longer for the same progress: it may get an even smaller share of a processor.
        self._progress = PROGRESS * timeout
        self._computed = 0.0
        self._deadline = now + self._timeout
        self._bound = now + BOUND * self._timeout

    def lasts(self, now: float, processor_time: Callable[[], float]) -> bool:
        """Whether the start may continue.

        Args:
            now: seconds of a monotonic clock.
            processor_time: seconds that the service has computed; called once per time-out, as that costs.
        """
        if now <= self._deadline:
            return True
        before, self._computed = self._computed, processor_time()
        if self._computed < before:  # a process of it has ended, and its time is counted no more
            before = 0.0
        self._deadline = now + self._timeout
        return self._computed - before >= self._progress and now <= self._bound
