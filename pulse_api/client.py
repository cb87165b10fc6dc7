"""HTTP client of the collect endpoint, used by `pulse collect` and the demo.

A request is retried when the connection breaks, the broker is slow or the tenant is over its rate; retries
are safe because an event id lands once, however often it is sent.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx
import orjson
from isal import igzip

from pulse_resources.errors import PulseError, Terminal, Transient, UserError

MAX_EVENTS = 500
MAX_BYTES = 2 * 1024 * 1024
"""Maximum size of a request before compression; well below the API's limit."""
ATTEMPTS = 8
LONGEST_WAIT_S = 900.0
"""A longer Retry-After is raised as an error instead of waited for."""
_TIMEOUT_S = 60.0
_ACCEPTED = (202, 207)
_ALL_REFUSED = "urn:pulse:problem:events-refused"


@dataclass(frozen=True)
class Collected:
    """Result of one collect request."""

    accepted: int
    dead_lettered: int
    refused: int
    verdicts: tuple[dict[str, Any], ...]
    """One entry per event that was not simply accepted: index (in the request), event_id, status, reason,
    pointer and detail."""
    ignored: tuple[dict[str, Any], ...] = ()
    """One entry per member of events that no column has: member, events, detail and fix."""


class Client:
    """One persistent connection with one tenant's key; use it as a context manager, from one thread."""

    def __init__(self, url: str, key: str, sleep: Callable[[float], None] = time.sleep) -> None:
        headers = {
            "Authorization": f"Bearer {key}",
            "Content-Type": "application/x-ndjson",
            "Content-Encoding": "gzip",
        }
        # Proxies from the environment are ignored: they lead out of this installation.
        self._http = httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT_S, trust_env=False)
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def collect(self, payloads: Sequence[bytes]) -> Collected:
        """Send events, each one JSON text without line breaks, and wait for the acknowledgement.

        Raises:
            UserError: the whole request is refused: its key, scope or size, or the month's quota.
            Transient: no answer, or still too busy after several attempts; some events may have arrived.
            Terminal: the answer does not come from a Pulse API.
        """
        body = igzip.compress(b"\n".join(payloads), compresslevel=1)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = self._http.post("/v1/collect", content=body)
            except httpx.TransportError as error:
                self._wait(attempt, 0.0, _silent(error))
                continue
            wait = retry_after(answer)
            if wait is None:
                return _collected(answer, len(payloads))
            self._wait(attempt, wait, _busy(answer))
        raise AssertionError("the last attempt returns or raises")

    def _wait(self, attempt: int, at_least: float, problem: PulseError) -> None:
        if attempt == ATTEMPTS or at_least > LONGEST_WAIT_S:
            raise problem
        self._sleep(max(at_least, min(10.0, 0.25 * 2**attempt)) * random.uniform(1.0, 1.2))  # noqa: S311


def retry_after(answer: httpx.Response) -> float | None:
    """Seconds to wait before retrying a request; None where a retry cannot succeed."""
    if answer.status_code not in (429, 503):
        return None
    text = answer.headers.get("Retry-After", "")
    if text.isdecimal():
        return float(text)
    # A 429 without Retry-After means that the monthly quota is used up: a retry soon would not help.
    return 0.0 if answer.status_code == 503 else None


def _collected(answer: httpx.Response, sent: int) -> Collected:
    document = _document(answer)
    if answer.status_code in _ACCEPTED:
        numbers = (document["accepted"], document["dead_lettered"], document["refused"])
        result = Collected(*numbers, tuple(document["verdicts"]), tuple(document.get("ignored", ())))
    elif document.get("type") == _ALL_REFUSED:
        result = Collected(0, 0, len(document["verdicts"]), tuple(document["verdicts"]))
    else:
        raise _problem(answer)
    if result.accepted + result.dead_lettered + result.refused != sent:
        raise Terminal(f"the API accounts for {result} of {sent} events", status=answer.status_code)
    return result


def _document(answer: httpx.Response) -> dict[str, Any]:
    try:
        document = orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise Terminal("the API's answer is not a JSON object", status=answer.status_code)
    return document


def _problem(answer: httpx.Response) -> PulseError:
    document = _document(answer)
    detail = str(document.get("detail") or document.get("title") or "the API refused the request")
    more = {"status": answer.status_code, "request": document.get("request_id", "")}
    kind = UserError if answer.status_code < 500 and retry_after(answer) is None else Transient
    return kind(detail, fix=document.get("fix"), **more)


def _silent(error: httpx.TransportError) -> PulseError:
    fix = "See with `pulse status` whether it is up; it is safe to send all events again"
    return Transient(f"the API does not answer: {error}", fix=fix)


def _busy(answer: httpx.Response) -> PulseError:
    """The error of a retryable answer; an answer without a problem document comes from a proxy in between."""
    try:
        return _problem(answer)
    except Terminal:
        return Transient("the API is busy", status=answer.status_code)


def requests(payloads: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Events in groups of a request each: 500 events or 2 MiB, whichever comes first."""
    group: list[bytes] = []
    size = 0
    for payload in payloads:
        if group and (len(group) == MAX_EVENTS or size + len(payload) > MAX_BYTES):
            yield group
            group, size = [], 0
        group.append(payload)
        size += len(payload) + 1
    if group:
        yield group
