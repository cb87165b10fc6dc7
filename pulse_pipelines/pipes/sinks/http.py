"""A service as a sink: one request after the other, each answered for before the next.

Who pushes is told by the address, as of a source (`pipes.web`). No error holds any of it, nor
what the service says.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import httpx
import orjson

from pulse_pipelines.pipes import web
from pulse_resources.errors import Conflict, Transient, UserError

ATTEMPTS = 6
BACKOFF_S = 0.5
LONGEST_WAIT_S = 60.0
"""The longest that a service may ask to be waited for."""
TIMEOUT_S = 60.0
MOST_ANSWERED = 4 * 1024 * 1024
"""Bytes of an answer that are read."""
_TAKEN = range(200, 300)
_AGAIN = (408, 425, 429, 500, 502, 503, 504)
_CONFLICT = 409


@dataclass(frozen=True)
class Answer:
    """Of a request that was taken."""

    refused: int
    """Entities that the service did not take, and has said so."""


class Service:
    """A connection to a service; use it as a context manager.

    Raises:
        UserError: the address is not valid.
    """

    def __init__(self, address: str, sleep: Callable[[float], None] = time.sleep) -> None:
        try:
            bare, auth = web.parsed(address)
        except ValueError:
            raise UserError("the address of the sink is no URL") from None
        self._url = bare.geturl()
        self._http = web.connected(auth, {"Content-Type": "application/x-ndjson", "User-Agent": "pulse"})
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def push(self, parameters: Mapping[str, str], lines: bytes) -> Answer:
        """Push entities, and wait until the service has answered for them.

        Raises:
            Conflict: the service does not go on with the chain of requests.
            UserError: it refuses the request; a repetition would not help.
            Transient: it does not answer, after several attempts.
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                status, headers, body = self._posted(parameters, lines)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                problem, wait = f"it does not answer ({type(error).__name__})", 0.0
            else:
                if status in _TAKEN:
                    return Answer(_refused(body))
                if status == _CONFLICT:
                    raise Conflict("the service does not go on with the chain of requests")
                problem = f"it answered {status}"
                if status not in _AGAIN:
                    raise UserError(f"the service does not take the entities: {problem}", fix=_fix(status))
                told = headers.get("Retry-After", "")
                wait = float(told) if told.isdecimal() and len(told) < 6 else 0.0
            if attempt == ATTEMPTS or wait > LONGEST_WAIT_S:
                break
            self._sleep(max(wait, BACKOFF_S * 2 ** (attempt - 1)))
        raise Transient(f"the service did not take the entities: {problem}")

    def _posted(self, parameters: Mapping[str, str], lines: bytes) -> tuple[int, httpx.Headers, bytes]:
        until = time.monotonic() + TIMEOUT_S
        url = httpx.URL(self._url).copy_merge_params(dict(parameters))
        with self._http.stream("POST", url, content=lines) as answer:
            read = b""
            for part in answer.iter_raw(64 * 1024):
                read += part
                if len(read) > MOST_ANSWERED or time.monotonic() > until:
                    break
            return answer.status_code, answer.headers, read


def _refused(body: bytes) -> int:
    """How many entities an answer of Pulse's form says were refused; of any other none."""
    try:
        document: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return 0
    found = document.get("refused") if isinstance(document, dict) else None
    return found if type(found) is int and found >= 0 else 0


def _fix(status: int) -> str:
    if status in (401, 403):
        return "An operator looks at the credentials in its address"
    if status in range(300, 400):
        return "It sends elsewhere, and Pulse does not follow: an operator writes the place into its address"
    if status == 422:
        return "It takes none of the entities of a page: compare its schema with the dataset's"
    return "Ask whoever runs it; an operator looks at its address"
