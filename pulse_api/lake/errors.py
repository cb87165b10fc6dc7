"""Error responses of the Iceberg REST specification: a status, a message, a type that clients know."""

import logging
from collections.abc import Mapping

import orjson
import psycopg
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pulse_api.http import problems
from pulse_api.http.problems import ProblemError
from pulse_pipelines.lake.errors import (
    CommitFailed,
    IllegalArgument,
    KeyReused,
    Malformed,
    NamespaceNotEmpty,
    NameTaken,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchView,
)
from pulse_resources.errors import PulseError, QuotaExceeded

_log = logging.getLogger("pulse.lake")
_OF_CLASS: Mapping[type[Exception], str] = {
    NoSuchNamespace: "NoSuchNamespaceException",
    NoSuchTable: "NoSuchTableException",
    NoSuchView: "NoSuchViewException",
    NameTaken: "AlreadyExistsException",
    NamespaceNotEmpty: "NamespaceNotEmptyException",
    CommitFailed: "CommitFailedException",
    IllegalArgument: "IllegalArgumentException",
}
_OF_STATUS: Mapping[int, str] = {
    400: "BadRequestException",
    401: "NotAuthorizedException",
    403: "ForbiddenException",
    404: "NotFoundException",
    405: "UnsupportedOperationException",
    406: "UnsupportedOperationException",
    409: "AlreadyExistsException",
    413: "BadRequestException",
    422: "UnprocessableEntityException",
    429: "TooManyRequestsException",
    503: "ServiceUnavailableException",
}
_STATUS: Mapping[type[Exception], int] = {
    Malformed: 400,
    IllegalArgument: 400,
    KeyReused: 422,
    QuotaExceeded: 403,  # clients would retry a 429 again and again
}
"""Statuses where the specification differs from Pulse's own HTTP API."""
_SERVER = "InternalServerError"


def body(problem: ProblemError, kind: str | None = None) -> bytes:
    """The specification's error document."""
    message = f"{problem.detail}. {problem.fix}" if problem.fix else problem.detail
    error = {
        "message": message,
        "type": kind or _OF_STATUS.get(problem.status, _SERVER),
        "code": problem.status,
    }
    return orjson.dumps({"error": error})


def answer(error: Exception) -> Response:
    """The response to a request that ends with an error."""
    problem = problem_of(error)
    if problem.status == 500 and isinstance(error, PulseError):  # others are logged by the server
        _log.error("a request failed", exc_info=error)
    kind = _OF_CLASS.get(type(error))
    if kind is not None:  # clients match these messages: nothing is added
        problem.fix = None
    return Response(body(problem, kind), problem.status, problem.headers, media_type="application/json")


def problem_of(error: Exception) -> ProblemError:
    """The problem of an error, with the status that the specification has for it."""
    problem = _no_store(error) if isinstance(error, OSError) else problems.of(error)
    problem.status = _STATUS.get(type(error), problem.status)
    return problem


def _no_store(error: OSError) -> ProblemError:
    """The problem of a failed object store; the error may hold parts of the request, so it is only logged."""
    _log.warning("the object store failed: %s", error)
    headers = {"Retry-After": str(problems.RETRY_S)}
    return ProblemError(503, "unavailable", "The object store does not answer", headers=headers)


def refused(status: int, detail: str, fix: str | None = None) -> ProblemError:
    """The problem of an invalid request."""
    return ProblemError(status, "invalid-request", detail, fix=fix)


INVALID = frozenset({400, 422})
"""Statuses of requests that are wrong in themselves."""
HANDLED: tuple[type[Exception], ...] = (ProblemError, PulseError, psycopg.OperationalError, HTTPException)


def install(app: Starlette) -> None:
    """Answer every error of this app in the specification's form."""

    async def handle(request: Request, error: Exception) -> Response:
        return answer(error)

    async def handle_unforeseen(request: Request, error: Exception) -> Response:
        return problems.unforeseen(request, answer(error))

    for kind in (*HANDLED, OSError):
        app.add_exception_handler(kind, handle)
    app.add_exception_handler(Exception, handle_unforeseen)
