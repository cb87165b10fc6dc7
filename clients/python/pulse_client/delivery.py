"""The course of one request, without I/O: what an answer means, and whether and when to try again."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn

import httpx

from pulse_client.batching import Batch
from pulse_client.errors import (
    Forbidden,
    InvalidRequest,
    OverQuota,
    OverRate,
    PulseClientError,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
)
from pulse_client.results import Ignored, SendResult, Verdict
from pulse_client.words import clean, optional

_ACCEPTED = (202, 207)
_ALL_REFUSED = "urn:pulse:problem:events-refused"
_OVER_RATE = 429
_BUSY = (408, _OVER_RATE, 502, 503, 504)
"""Answers after which the same request may succeed; 502 and 504 come from proxies in between."""
_KINDS: Mapping[int, type[PulseClientError]] = {401: Unauthorized, 403: Forbidden, 413: TooLarge}
_OF_THE_BODY = ("content-encoding", "content-length", "transfer-encoding")
MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Bytes of an answer, decompressed; 10,000 verdicts have 3 MB."""
_REDIRECTS = range(300, 400)
_PATH = "/v1/collect"
_ADDRESS = "Is this the address of a Pulse API, without a path?"
_MOST_OF_A_DETAIL = 2_000
_AGAIN = "Send the same events again later: an event id lands once"


@dataclass(frozen=True)
class Retries:
    """How often to try a request, and how long to pause: twice as long each time, and not less than
    Retry-After; then up to a half more at random, so that clients spread."""

    attempts: int = 8
    first_pause_s: float = 0.5
    longest_pause_s: float = 10.0
    longest_retry_after_s: float = 900.0
    """A longer Retry-After is an error at once."""

    def pause(self, attempt: int, retry_after: float) -> float:
        """Seconds to wait after an attempt, counted from 1."""
        doubled = self.first_pause_s * 2.0 ** min(attempt - 1, 32)
        return max(retry_after, min(self.longest_pause_s, doubled)) * random.uniform(1.0, 1.5)  # noqa: S311


class Deadline:
    """The end of the time that a caller gives to a call."""

    def __init__(self, timeout: float) -> None:
        self._end = time.monotonic() + timeout

    def remaining(self) -> float:
        """Seconds; 0 or less: it has passed."""
        return self._end - time.monotonic()


class AnswerBody:
    """The body of an answer, which is read piece by piece, in bounded memory and time."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._body = bytearray()

    def add(self, piece: bytes) -> None:
        """Raises httpx.TransportError: the answer is too large, or takes too long."""
        self._body += piece
        if len(self._body) > MAX_ANSWER_BYTES:
            raise httpx.RemoteProtocolError(f"its answer has more than {MAX_ANSWER_BYTES:,} bytes")
        if self._deadline.remaining() <= 0:
            raise httpx.ReadTimeout("its answer takes too long")

    def response(self, answer: httpx.Response) -> httpx.Response:
        """The answer with this body."""
        headers = [item for item in answer.headers.multi_items() if item[0] not in _OF_THE_BODY]
        return httpx.Response(answer.status_code, headers=headers, content=bytes(self._body))


class Delivery:
    """Attempts at one batch. After each, one of the methods below is called; it returns or raises.

    They return a SendResult, which is final, or the seconds to wait before the next attempt. They raise a
    PulseClientError where a retry cannot help, or attempts or time have ended.
    """

    def __init__(self, batch: Batch, retries: Retries, deadline: Deadline) -> None:
        self._batch = batch
        self._retries = retries
        self._deadline = deadline
        self._attempt = 0

    def answer_body(self) -> AnswerBody:
        return AnswerBody(self._deadline)

    def request_timeout(self, longest: float) -> float:
        """Seconds for the next attempt."""
        return max(0.001, min(longest, self._deadline.remaining()))

    def after_silence(self, error: httpx.TransportError) -> float:
        """The connection broke, or no answer came in time."""
        fix = f"Check the address and the network. {_AGAIN}"
        reason = clean(error) or type(error).__name__
        return self._pause(0.0, Unavailable(f"the API does not answer: {reason}", fix=fix))

    def after_answer(self, answer: httpx.Response) -> SendResult | float:
        """The server, or a proxy, has answered."""
        if answer.status_code in _REDIRECTS:
            raise _redirected(answer)
        document = _document(answer)
        if answer.status_code in _ACCEPTED:
            return self._checked(answer, _counts(answer, document))
        if document is not None and document.get("type") == _ALL_REFUSED:
            verdicts = document.get("verdicts")
            refused = len(verdicts) if isinstance(verdicts, list) else None
            return self._checked(answer, {"refused": refused, "verdicts": verdicts})
        error, wait = _problem(answer, document), retry_after(answer)
        if wait is None:
            raise error
        error.retry_after = wait
        return self._pause(wait, error)

    def _pause(self, at_least: float, error: PulseClientError) -> float:
        self._attempt += 1
        pause = self._retries.pause(self._attempt, at_least)
        ended = self._attempt >= self._retries.attempts or at_least > self._retries.longest_retry_after_s
        if ended or pause > self._deadline.remaining():
            raise error
        return pause

    def _checked(self, answer: httpx.Response, counts: Mapping[str, Any]) -> SendResult:
        """The result, with the caller's own indexes."""
        events = self._batch.events
        try:
            entries = {_count(entry["index"]): entry for entry in counts["verdicts"]}
            beyond = [index for index in entries if index >= len(events)]
            if beyond or len(entries) < len(counts["verdicts"]):
                _unexpected(answer, f"its verdicts are not on {len(events)} events, each on another")
            verdicts = [_verdict(entry, events[index].index) for index, entry in entries.items()]
            ignored = tuple(
                Ignored(entry["member"], _count(entry["events"]), clean(entry["detail"]), clean(entry["fix"]))
                for entry in counts.get("ignored", ())
            )
            numbers = (counts.get("accepted", 0), counts.get("dead_lettered", 0), counts["refused"])
            accepted, dead_lettered, refused = map(_count, numbers)
            result = SendResult(accepted, dead_lettered, refused, (), ignored)
        except (KeyError, TypeError) as error:
            _unexpected(answer, f"the answer lacks what a Pulse API returns: {clean(repr(error))}")
        if result.events != len(events):
            _unexpected(answer, f"the API accounts for {result.events} of {len(events)} events")
        return with_refusals(result, verdicts, self._batch)


def with_refusals(result: SendResult, verdicts: list[Verdict], batch: Batch) -> SendResult:
    """The result of a request, and the events of its batch that could not be sent."""
    every = sorted([*verdicts, *batch.refusals], key=lambda verdict: verdict.index)
    refused = result.refused + len(batch.refusals)
    return SendResult(result.accepted, result.dead_lettered, refused, tuple(every), result.ignored)


def retry_after(answer: httpx.Response) -> float | None:
    """Seconds to wait before a request is repeated; None where that cannot succeed."""
    if answer.status_code not in _BUSY:
        return None
    text = answer.headers.get("Retry-After", "")
    if text.isdecimal():
        return float(text)
    if (seconds := _until(text)) is not None:
        return seconds
    # A 429 without Retry-After means that the monthly quota is used up: a retry soon would not help.
    return None if answer.status_code == _OVER_RATE else 0.0


def _until(date: str) -> float | None:
    """Seconds until a date of HTTP, at least 0; None: it is none. Proxies write dates, Pulse seconds."""
    try:
        moment = parsedate_to_datetime(date)
    except (TypeError, ValueError):  # the first before Python 3.10
        return None
    return max(0.0, moment.replace(tzinfo=moment.tzinfo or timezone.utc).timestamp() - time.time())


def _document(answer: httpx.Response) -> dict[str, Any] | None:
    try:
        document = json.loads(answer.content)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _counts(answer: httpx.Response, document: dict[str, Any] | None) -> Mapping[str, Any]:
    if document is None:
        _unexpected(answer, "the API's answer is not a JSON object")
    return document


def _verdict(entry: Mapping[str, Any], index: int) -> Verdict:
    detail = clean(entry["detail"], _MOST_OF_A_DETAIL)
    return Verdict(index, entry["event_id"], entry["status"], entry["reason"], entry["pointer"], detail)


def _count(number: object) -> int:
    """A count or an index. Raises TypeError: it is neither."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise TypeError(f"{clean(repr(number), 40)} is not a count")
    return number


def _redirected(answer: httpx.Response) -> UnexpectedAnswer:
    """Requests are not sent elsewhere: whoever redirects would be given the key."""
    target = clean(answer.headers.get("Location", "").strip())
    if not target:
        message = f"the address redirects (HTTP {answer.status_code}), and does not say where"
        return UnexpectedAnswer(message, status=answer.status_code, fix=_ADDRESS)
    base = target.removesuffix(_PATH)
    fix = f"If you trust it, use that address: {base}" if "://" in base else _ADDRESS
    return UnexpectedAnswer(f"the address redirects to {target}", status=answer.status_code, fix=fix)


def _problem(answer: httpx.Response, document: dict[str, Any] | None) -> PulseClientError:
    """The error of an answer that is not a result."""
    status, wait = answer.status_code, retry_after(answer)
    if document is None:
        if wait is not None:
            return Unavailable("the API is busy", status=status, fix=_AGAIN)
        if status not in _KINDS:
            _unexpected(answer, "the API's answer is not a JSON object")
    members = document or {}
    kind = _KINDS.get(status, InvalidRequest)
    if status == _OVER_RATE:
        kind = OverQuota if wait is None else OverRate
    elif status >= 500 or wait is not None:
        kind = Unavailable
    return kind(
        clean(members.get("detail") or members.get("title") or f"the API refused the request with {status}"),
        fix=optional(members.get("fix")),
        status=status,
        problem=optional(members.get("type")),
        request_id=optional(members.get("request_id")),
    )


def _unexpected(answer: httpx.Response, message: str) -> NoReturn:
    raise UnexpectedAnswer(message, status=answer.status_code, fix=_ADDRESS)
