"""Problem documents (RFC 9457): the form of every error answer, with what to do next."""

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
import psycopg
from confluent_kafka import KafkaException
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pulse_api.http.models import Body
from pulse_pipelines.ask.read import NotUnderstood
from pulse_resources.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    NotFound,
    PulseError,
    QuotaExceeded,
    Transient,
    UserError,
)

_log = logging.getLogger("pulse.api")
_COMMAND = re.compile(r"\bpulse [a-z]|--[a-z]")
"""Matches references to the command line in a fix: callers of the HTTP API have no command line."""
MEDIA_TYPE = "application/problem+json"
RETRY_S = 1
MOST_LISTED = 100
"""Errors of a request that its answer lists."""


class Problem(BaseModel):
    """What went wrong, for a program (`type`) and for a person (`detail`)."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(examples=["urn:pulse:problem:not-found"])
    title: str
    status: int
    detail: str
    fix: str = Field(description="What to do about it.")
    request_id: str = Field(description="Also in the header X-Request-Id and in the server's log.")


class ProblemError(Exception):
    """Raised to end a request with this problem document."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        fix: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more: object,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.fix = fix
        self.headers = dict(headers or {})
        self.more = more

    def __reduce__(self) -> tuple[Any, ...]:
        # Raised in worker processes, too, so it is pickled: keyword arguments must survive.
        return _rebuild, (self.status, self.kind, self.detail, self.fix, self.headers, self.more)


def _rebuild(
    status: int,
    kind: str,
    detail: str,
    fix: str | None,
    headers: Mapping[str, str],
    more: Mapping[str, object],
) -> ProblemError:
    return ProblemError(status, kind, detail, fix=fix, headers=headers, **more)


def document(problem: ProblemError, request_id: str) -> bytes:
    """The problem document."""
    members: dict[str, Any] = {
        "type": f"urn:pulse:problem:{problem.kind}",
        "title": problem.kind.replace("-", " ").capitalize(),
        "status": problem.status,
        "detail": problem.detail,
        "fix": problem.fix or _FIXES.get(problem.status, _FIX),
        "request_id": request_id,
    }
    return orjson.dumps(members | problem.more, default=str)


def response(request: Request, problem: ProblemError) -> Response:
    """The response of a request that ends with a problem."""
    content = document(problem, request.state.request_id)
    return Response(content, problem.status, problem.headers, media_type=MEDIA_TYPE)


_ALLOWED = "JSON in UTF-8, without NaN, numbers beyond a double (1e400) and lone surrogates"
_STATUS: tuple[tuple[type[PulseError], int, str], ...] = (
    (NotFound, 404, "not-found"),
    (AlreadyExists, 409, "already-exists"),
    (Conflict, 409, "conflict"),
    (Forbidden, 403, "forbidden"),
    (QuotaExceeded, 429, "quota-exceeded"),
    (UserError, 422, "invalid-request"),
    (Transient, 503, "unavailable"),
    (PulseError, 500, "failed"),
)


EXPECTED = (ProblemError, PulseError, psycopg.OperationalError, KafkaException, HTTPException)
"""Exceptions that an endpoint may raise and `of` converts."""


def of(error: Exception) -> ProblemError:
    """The problem of an exception."""
    match error:
        case ProblemError():
            return error
        case PulseError():
            return _of_pulse_error(error)
        case psycopg.OperationalError() | KafkaException():
            service = "Kafka" if isinstance(error, KafkaException) else "Postgres"
            headers = {"Retry-After": str(RETRY_S)}
            return ProblemError(503, "unavailable", f"{service} does not answer", headers=headers)
        case RequestValidationError():
            return _invalid(error)
        case HTTPException():
            kinds = {404: "not-found", 405: "method-not-allowed", 413: "too-large"}
            kind = kinds.get(error.status_code, "invalid-request")
            return ProblemError(error.status_code, kind, _routed(error), headers=error.headers)
    detail = "internal error of Pulse"
    return ProblemError(500, "failed", detail, fix="Report the request_id: the server's log has the cause")


def _of_pulse_error(error: PulseError) -> ProblemError:
    """The problem of a PulseError, with its attributes and lists."""
    status, kind = next((status, kind) for cls, status, kind in _STATUS if isinstance(error, cls))
    headers = {"Retry-After": str(RETRY_S)} if status == 503 else {}
    more: dict[str, Any] = {name: value for name, value in error.where.items() if name != "status"}
    if incompatibilities := getattr(error, "incompatibilities", None):
        more["incompatibilities"] = [vars(entry) for entry in incompatibilities]
    if isinstance(error, NotUnderstood):
        kind, more = (
            "not-understood",
            more | {"understood": error.understood, "known": error.fields_by_dataset},
        )
    fix = None if _COMMAND.search(error.fix or "") else error.fix
    return ProblemError(status, kind, error.message, fix=fix, headers=headers, **more)


def _routed(error: HTTPException) -> str:
    """Detail of an error for which the framework gives only a status."""
    words = {404: "there is nothing at this path", 405: "this path does not take this method"}
    return words.get(error.status_code, str(error.detail))


def _invalid(error: RequestValidationError) -> ProblemError:
    entries = error.errors()[:MOST_LISTED]
    for entry in entries:
        if entry["type"] == "json_invalid":
            return _not_json(entry, error.body)
    problems = [{"at": ".".join(_place(entry["loc"])), "problem": _plain(entry)} for entry in entries]
    detail = "; ".join(f"{entry['at']}: {entry['problem']}" for entry in problems)[:2000]
    return ProblemError(422, "invalid-request", detail, errors=problems)


def _not_json(entry: Mapping[str, Any], body: object) -> ProblemError:
    """The problem of a body that its decoder refuses, with the decoder's words and place."""
    text, place = body if isinstance(body, str) else "", int(entry["loc"][-1])
    decode_error = json.JSONDecodeError(entry["ctx"]["error"], text, place)
    return ProblemError(400, "malformed", f"the body is not JSON: {decode_error}", fix=f"Send {_ALLOWED}")


def _place(loc: Sequence[int | str]) -> Iterator[str]:
    """Location in a request, without class names of the members of a union (a body of several forms)."""
    forms = {form.__name__ for form in Body.__subclasses__()}
    return (str(part) for depth, part in enumerate(loc) if not (depth == 1 and part in forms))


def _plain(entry: Mapping[str, Any]) -> str:
    """What is wrong with a part of a request, without terms of the validation library."""
    texts = {
        "extra_forbidden": "is unknown",
        "missing": "is missing",
        "model_attributes_type": "must be a JSON object",
        "model_type": "must be a JSON object",
        "dict_type": "must be a JSON object",
        "list_type": "must be an array",
    }
    if (plain := texts.get(entry["type"])) is not None:
        return plain
    message = str(entry["msg"]).removeprefix("Input ").removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def install(app: FastAPI) -> None:
    """Answer every error of this app with a problem document."""

    async def answer(request: Request, error: Exception) -> Response:
        problem = of(error)
        if problem.status == 500 and isinstance(error, PulseError):  # others are logged by the server
            _log.error("a request failed", exc_info=error)
        if problem.status == 405 and not isinstance(error, ProblemError):  # which lists the methods itself
            problem.headers["Allow"] = ", ".join(_methods(request))
        return response(request, problem)

    async def answer_unforeseen(request: Request, error: Exception) -> Response:
        return unforeseen(request, await answer(request, error))

    for kind in (*EXPECTED, RequestValidationError):
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(Exception, answer_unforeseen)


def unforeseen(request: Request, answer: Response) -> Response:
    """The answer to an unexpected error, with the headers of its way to the caller.

    It bypasses our middleware, which adds the id to all others, and the server closes its connection.
    """
    answer.headers.update({"X-Request-Id": request.state.request_id, "Connection": "close"})
    return answer


def _methods(request: Request) -> list[str]:
    """All methods of this path; Starlette's own 405 considers only the first matching route."""
    paths = request.app.openapi()["paths"]
    template = getattr(request.scope.get("route"), "path", "")
    methods = paths.get(request.url.path) or paths.get(template, ())
    return sorted(method.upper() for method in methods)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI responses of these problem statuses, for a route's `responses`."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {
            "description": _DESCRIPTIONS[status],
            "content": {MEDIA_TYPE: {"schema": schema}},
        }
        for status in statuses
    }


_DESCRIPTIONS = {
    400: "The request cannot be read.",
    401: "No key, or one that is not in force.",
    403: "The key lacks the scope that this needs.",
    404: "The tenant has no such object; another tenant may have one.",
    406: "None of the accepted media types is available.",
    409: "The state of things does not allow it.",
    413: "The body, as sent or decompressed, is too large.",
    415: "The body's media type or encoding is not taken.",
    422: "The request can be read, but is wrong: `detail` says where.",
    429: "A quota or a rate is used up, or too many requests wait already; see Retry-After.",
    501: "Queries cannot run on this server: `detail` says why.",
    503: "A service behind Pulse does not answer, or is slow: try again after Retry-After.",
}
_FIX = "Correct the request: GET /openapi.json says what each path takes"
_FIXES = {
    400: "Send a body that can be read: `detail` says where it cannot",
    404: "GET /openapi.json lists the paths; each list, such as GET /v1/datasets, says what there is",
    405: "Use one of the methods in the header Allow",
    408: "Send the request again, faster",
    409: "Look at what there is with GET, then change the request or what is in its way",
    413: "Send less at a time",
    429: "Send it again after Retry-After",
    431: "Send fewer or shorter headers",
    500: "Report the request_id: the server's log has the cause",
    503: "Send it again after Retry-After",
}
"""Default fix by problem type, where the problem itself has none."""
