"""A service as a sink: one request after the other, each answered before the next.

The address has the credentials, as that of a source (`pipes.web`). No error contains any part of it, or of
the service's answers.
"""

import math
import re
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

import httpx
import msgspec

from pulse_pipelines.pipes import web
from pulse_resources.errors import Conflict, Transient, UserError

TIMEOUT_S = 60.0
MOST_ANSWERED = 4 * 1024 * 1024
"""Bytes of an answer that are read."""
_ACCEPTED = range(200, 300)
_CONFLICT = 409
_HEADERS = {"Content-Type": "application/x-ndjson", "Accept-Encoding": "identity"}


_LENGTHS = {"content-length", "transfer-encoding"}
"""Headers that tell where an answer ends; without one, a lost connection looks like its end."""
_ABSENT = msgspec.Raw(b"0")


class _SinkAnswer(msgspec.Struct):
    """What is read of an answer; its other members are not made, however many they are."""

    refused: msgspec.Raw = _ABSENT
    dead_lettered: msgspec.Raw = _ABSENT


_NONE = (b"null", b"false", b"[]")
"""What says that there are none, where a number is expected."""
_COUNTING = re.compile(rb'\s*\{.*"(refused|dead_lettered)"', re.DOTALL)
_MOST_REFUSED = 2**53
"""Beyond it a count is none, and has no exact double."""
_decoder = msgspec.json.Decoder(_SinkAnswer)
_number = msgspec.json.Decoder(float)


@dataclass(frozen=True)
class Answer:
    """The answer to an accepted request."""

    refused: int
    """Entities that the service reported as refused, or as dead letters."""


class Service:
    """A connection to a service; use it as a context manager.

    Raises:
        UserError: the address is not valid.
    """

    def __init__(self, address: str, sleep: Callable[[float], None] = time.sleep) -> None:
        try:
            bare, auth = web.parsed(address)
        except ValueError:
            raise UserError("the address of the sink is not a URL") from None
        self._url = bare.geturl()
        self._http = web.connected(auth, {**_HEADERS, "User-Agent": "pulse"})
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def push(self, parameters: Mapping[str, str], lines: bytes) -> Answer:
        """Push entities, and wait for the service's answer.

        Raises:
            Conflict: the service does not continue the chain of requests.
            UserError: it refuses the request; a repetition would not help.
            Transient: it does not answer, after several attempts.
        """
        return web.patiently(partial(self._push, parameters, lines), self._sleep)

    def _push(self, parameters: Mapping[str, str], lines: bytes) -> Answer:
        until = time.monotonic() + TIMEOUT_S
        url = httpx.URL(self._url).copy_merge_params(dict(parameters))
        try:
            with self._http.stream("POST", url, content=lines) as answer:
                body, is_whole = bytearray(), True
                for part in answer.iter_raw():  # as it comes: one that trickles is left, too
                    body += part
                    if len(body) > MOST_ANSWERED or time.monotonic() > until:
                        is_whole = False
                        break
        except httpx.InvalidURL:
            raise UserError("the address of the sink is malformed") from None
        except httpx.HTTPError as error:
            raise web.unreachable("service", error) from None
        status, read = answer.status_code, bytes(body)
        if status in _ACCEPTED:
            if answer.headers.get("content-type", "").lower().startswith("text/html"):
                raise UserError(
                    "the service answers with an HTML page, which does not confirm the entities",
                    fix="Check that its address leads to an endpoint for entities, not to a login form",
                )
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise UserError(
                    "the service's answer is compressed, although that was not requested",
                    fix="It hides how many entities were refused: have the service, or its proxy, respect "
                    "Accept-Encoding",
                )
            if is_whole and not _LENGTHS & answer.headers.keys() and _is_cut(read):
                raise Transient("the service's answer ends within its JSON")
            return Answer(_refused(read, is_whole=is_whole))
        if status == _CONFLICT:
            raise Conflict("the service does not continue the chain of requests")
        if web.may_pass(status):
            raise web.busy("the service does not take the entities now", answer)
        raise UserError("the service does not take the entities", fix=_fix(status), status=status)


def _is_cut(body: bytes) -> bool:
    """Whether an answer, whose end only the end of its connection tells, began as an object and is none."""
    body = body.removeprefix(BOM_UTF8)
    try:
        _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return body.lstrip().startswith(b"{")
    return False


def _refused(body: bytes, *, is_whole: bool) -> int:
    """How many entities an answer of Pulse's form says have not become versions; of any other none.

    Raises:
        UserError: it has something else than a count, is an object that has one and is not JSON, or is not
            whole and has none before its first list.
    """
    body = body.removeprefix(BOM_UTF8)
    try:
        counted = _decoder.decode(body if is_whole else _head(body))
    except (msgspec.DecodeError, RecursionError):
        counted = _SinkAnswer()
        if is_whole and _COUNTING.match(body):  # as of an answer that was cut, or with NaN
            raise UserError(
                "the service's answer counts refused entities, but is not JSON",
                fix="How many it has refused is unknown: have it answer with one whole JSON object",
            ) from None
    if not is_whole and counted.refused is _ABSENT and counted.dead_lettered is _ABSENT:
        raise UserError(
            f"the service's answer has more than {MOST_ANSWERED:,} bytes, or takes more than {TIMEOUT_S:g} s,"
            " and does not say at its start how many entities it has refused",
            fix="Have it answer with `refused` before any list, or in fewer bytes",
        )
    return _count("refused", counted.refused) + _count("dead_lettered", counted.dead_lettered)


def _count(member: str, content: msgspec.Raw) -> int:
    try:
        is_none = bytes(content).replace(b" ", b"") in _NONE
        number = 0.0 if is_none else _number.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        number = math.nan
    if number % 1 != 0 or number > _MOST_REFUSED:  # as of NaN
        raise UserError(
            f"the service's answer does not count entities in its member {member}",
            fix="How many it has refused is unknown: have it answer with a whole number",
        )
    return max(0, int(number))


def _head(body: bytes) -> bytes:
    """The members of an answer before its first list, of one that was not read to its end."""
    return body.partition(b"[")[0] + b"[]}"


def _fix(status: int) -> str:
    if status in (401, 403):
        return "An operator checks the credentials in its address"
    if status in range(300, 400):
        return "It redirects, and Pulse does not follow: an operator writes the target into its address"
    if status == 422:
        return "It accepts none of the entities of a page: compare its schema with the dataset's"
    return "Ask whoever runs it; an operator checks its address"
