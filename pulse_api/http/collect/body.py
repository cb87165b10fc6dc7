"""A request's body as bytes: read and decompressed within the limits, whatever it claims to be."""

import zlib
from collections.abc import Callable

import zstandard
from starlette.requests import Request

from pulse_api.http.problems import ProblemError

GZIP_WINDOW = 31
ZSTD_WINDOW = 8 * 1024 * 1024
"""Bytes that a decoder must be ready to keep, by RFC 9659; more are not taken."""
_GZIP_MAGIC = b"\x1f\x8b"


def too_large(limit: int) -> ProblemError:
    """The body is larger than `limit` bytes."""
    return ProblemError(
        413,
        "too-large",
        f"a body may have {limit:,} bytes, also decompressed",
        fix="Send fewer events at a time",
    )


async def read(request: Request, limit: int) -> bytes:
    """The whole body, decompressed.

    Raises:
        ProblemError: 413 beyond `limit` bytes, 415 for an unknown encoding, 400 for a broken one.
    """
    body = await request.body()  # the middleware has bounded it
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("identity", ""):
        return body
    decompress = _DECOMPRESS.get(encoding)
    if decompress is None:
        raise ProblemError(
            415,
            "unsupported-encoding",
            f"the encoding {encoding[:50]!r} is not taken",
            headers={"Accept-Encoding": ", ".join(_DECOMPRESS)},
        )
    try:
        return decompress(body, limit)
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise ProblemError(400, "malformed", f"the body is not valid {encoding}: {error}") from error


def _gunzip(body: bytes, limit: int) -> bytes:
    """All members of a gzip file; one of them after the other never grows beyond the limit."""
    parts: list[bytes] = []
    size = 0
    while body:
        member = zlib.decompressobj(GZIP_WINDOW)
        part = member.decompress(body, limit + 1 - size)
        size += len(part)
        if size > limit:
            raise too_large(limit)
        if not member.eof:
            raise EOFError("it ends too early")
        parts.append(part)
        body = member.unused_data
        if body and not body.startswith(_GZIP_MAGIC):
            raise EOFError("something follows it")
    return b"".join(parts)


def _unzstd(body: bytes, limit: int) -> bytes:
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    reader = decompressor.stream_reader(body, read_across_frames=True)
    content = reader.read(limit + 1)
    if len(content) > limit:
        raise too_large(limit)
    return content


_DECOMPRESS: dict[str, Callable[[bytes, int], bytes]] = {"gzip": _gunzip, "zstd": _unzstd}
