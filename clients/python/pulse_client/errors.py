"""Errors of a request as a whole. What is wrong with one event is a `Verdict`, never an exception.

PulseClientError        `fix` is the next step, as the server states it
├── InvalidRequest      the request cannot be read, or its path does not exist: check the address
├── Unauthorized        the key is missing, wrong, expired or revoked
├── Forbidden           the key lacks the scope `collect`
├── TooLarge            a request exceeds a limit of the server, or of a proxy in between
├── OverQuota           the tenant's monthly quota is used up: waiting does not help
├── Unavailable         no answer, or still busy when attempts or time ended: send the same events later
│   └── OverRate        the tenant still exceeds its rate
└── UnexpectedAnswer    the answer does not come from a Pulse API
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from pulse_client.results import SendResult


class PulseClientError(Exception):
    """Base class of this package's errors. It survives pickling."""

    def __init__(
        self,
        message: str,
        *,
        fix: str | None = None,
        status: int | None = None,
        problem: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        """What to do about it."""
        self.status = status
        """HTTP status; None: there was no answer."""
        self.problem = problem
        """Type of the problem document, such as `urn:pulse:problem:quota-exceeded`."""
        self.request_id = request_id
        """The request in the server's log."""
        self.retry_after: float | None = None
        """Seconds after which the server expects the request again, if it stated them."""
        self.partial: SendResult | None = None
        """Result of the requests before, of the same call of `send`. Of the request that failed, and of those
        after it, events may have arrived or not."""

    def __str__(self) -> str:
        ends = "" if self.message.endswith(("?", ".", "!")) else "."
        return self.message + (f"{ends} {self.fix}" if self.fix else "")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message,), self.__dict__


def note_partial(error: BaseException, results: Iterable[SendResult]) -> None:
    """Give an error the result of the requests before it, whoever raised it."""
    with suppress(AttributeError):  # its class has no room for it
        error.partial = SendResult.total(results)  # type: ignore[attr-defined]


class InvalidRequest(PulseClientError):  # noqa: N818 - reads as the fact it states
    pass


class Unauthorized(PulseClientError):  # noqa: N818
    pass


class Forbidden(PulseClientError):  # noqa: N818
    pass


class TooLarge(PulseClientError):  # noqa: N818
    pass


class OverQuota(PulseClientError):  # noqa: N818
    pass


class Unavailable(PulseClientError):  # noqa: N818
    pass


class OverRate(Unavailable):
    pass


class UnexpectedAnswer(PulseClientError):  # noqa: N818
    pass
