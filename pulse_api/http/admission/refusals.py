"""Problems of connections, as the bytes of an answer: the app never sees these requests."""

import os

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from pulse_api.http import problems
from pulse_api.http.problems import ProblemError

MAX_HEAD_BYTES = 64 * 1024


def raw(problem: ProblemError) -> bytes:
    """A raw HTTP response for a client that the app never sees."""
    content = problems.document(problem, os.urandom(8).hex())
    headers = {
        "Content-Type": problems.MEDIA_TYPE,
        "Content-Length": str(len(content)),
        "Connection": "close",
    } | problem.headers
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return STATUS_LINE[problem.status] + lines.encode() + b"\r\n" + content


def head_too_large() -> ProblemError:
    detail = f"the headers of the request are larger than {MAX_HEAD_BYTES:,} bytes"
    return ProblemError(431, "headers-too-large", detail)


def framing_too_large(most: int) -> ProblemError:
    return ProblemError(
        413,
        "too-large",
        f"the sizes of chunks and the trailers have more than {most:,} bytes and a quarter of the body",
        fix="Send larger chunks, or the length of the body",
    )


def busy(kind: str, detail: str) -> ProblemError:
    return ProblemError(
        503,
        f"too-many-{kind}",
        detail,
        fix="Send many requests over one connection, and close those that you do not need",
        headers={"Retry-After": "1"},
    )
