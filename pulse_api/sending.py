"""Send events from this installation with the package `pulse_client`, for `pulse collect` and the demo."""

import math

import httpx

from pulse_client import (
    Batch,
    Client,
    PulseClientError,
    Retries,
    SendResult,
    Unavailable,
    UnexpectedAnswer,
    batches,
)
from pulse_resources.errors import PulseError, Terminal, Transient, UserError

__all__ = ["Batch", "Client", "SendResult", "batches", "open_client", "send_batch"]
RETRIES = Retries()
_DOWN = "See with `pulse status` whether it is up; it is safe to send all events again"


def open_client(url: str, key: str) -> Client:
    """A client without a limit of time, for one thread at a time."""
    # Proxies from the environment are ignored: they lead out of this installation.
    return Client(url, key, timeout=math.inf, retries=RETRIES, http=httpx.Client(trust_env=False))


def send_batch(client: Client, batch: Batch) -> SendResult:
    """Send the events of one request.

    Raises:
        UserError: the whole request is refused: its key, scope or size, or the month's quota.
        Transient: no answer, or still too busy after several attempts; some events may have arrived.
        Terminal: the answer does not come from a Pulse API.
    """
    try:
        return client.send_batch(batch)
    except PulseClientError as error:
        raise _to_pulse_error(error) from error


def _to_pulse_error(error: PulseClientError) -> PulseError:
    if error.status is None:
        return Transient(error.message, fix=_DOWN)
    where: dict[str, object] = {"status": error.status}
    if isinstance(error, UnexpectedAnswer):
        return Terminal(error.message, fix=error.fix, **where)
    kind = Transient if isinstance(error, Unavailable) else UserError
    return kind(error.message, fix=error.fix, **where, request=error.request_id or "")
