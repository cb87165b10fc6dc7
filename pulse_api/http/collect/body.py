"""A request's body as bytes: received and decompressed within the limits, whatever sizes it declares."""

import zlib
from collections.abc import Callable

import zstandard
from starlette.datastructures import Headers
from starlette.requests import Request

from pulse_api.http.collect.body_memory import BodyHolding
from pulse_api.http.problems import ProblemError
from pulse_pipelines.domain.charsets import foreign
from pulse_resources.settings.api_settings import ApiSettings

GZIP_WINDOW = 31
GZIP_PIECE = 16 * 1024
"""Input bytes per call of a decoder: bytes beyond the end of a member are copied with each call."""
ZSTD_WINDOW = 8 * 1024 * 1024
"""Maximum window size of a zstd decoder, by RFC 9659; larger windows are refused."""
_ZSTD_END = b"\xff" * 64
_ZSTD_END_FRAME = zstandard.ZstdCompressor(write_checksum=True).compress(_ZSTD_END)
"""Follows a body: the decoder reports no missing end, but reads this as data of an unfinished frame."""
FREE_BYTES = 2 * 1024 * 1024
"""Decompressed size that is always permitted, whatever the compression ratio."""
_FORM = "application/x-www-form-urlencoded"
_AS_UTF8 = "Send the body in UTF-8, without a charset or with charset=utf-8"
_GZIP_MAGIC = b"\x1f\x8b"


def too_large(limit: int) -> ProblemError:
    """The problem of a body that is larger than `limit` bytes."""
    return ProblemError(
        413,
        "too-large",
        f"the body is larger than {limit:,} bytes, which holds for the decompressed body, too",
        fix="Send less at a time",
    )


def refuse_charset(headers: Headers) -> None:
    """Raise ProblemError (415) for a body in another charset: as UTF-8 it would be another text."""
    for content_type in headers.getlist("content-type"):
        # A form is percent-encoded, and clients name any charset.
        if not content_type.startswith(_FORM) and (charset := foreign(content_type)) is not None:
            raise ProblemError(
                415, "unsupported-media-type", f"the charset {charset!r} is not supported", fix=_AS_UTF8
            )


async def received(request: Request, most: int, holding: BodyHolding) -> bytes:
    """The body as it was sent. Raises ProblemError: 413 beyond `most` bytes, 415 unless it is UTF-8."""
    refuse_charset(request.headers)
    if int(request.headers.get("content-length", 0)) > most:  # the server has checked that it is a number
        raise too_large(most)
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > most:
            raise too_large(most)
        holding.add(len(piece))
        pieces.append(piece)
    return b"".join(pieces)


def encoding_of(headers: Headers) -> str | None:
    """Content encoding of the body; None where it is not compressed. Raises ProblemError: 415 if unknown."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("identity", ""):
        return None
    if encoding not in _DECOMPRESS:
        raise ProblemError(
            415,
            "unsupported-encoding",
            f"the encoding {encoding[:50]!r} is not supported",
            headers={"Accept-Encoding": ", ".join(_DECOMPRESS)},
        )
    return encoding


def decompress(body: bytes, encoding: str, limits: ApiSettings) -> bytes:
    """Decompress a body.

    Raises:
        ProblemError: 413 beyond a limit, 400 for a broken encoding.
    """
    try:
        return _DECOMPRESS[encoding](body, limits)
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise ProblemError(400, "malformed", f"the body is not valid {encoding}: {error}") from error


def _gunzip(body: bytes, limits: ApiSettings) -> bytes:
    """Decompress all members of a gzip file, at most one per permitted event."""
    most = _most(body, limits)
    parts: list[bytes] = []
    members = size = at = 0
    view = memoryview(body)
    while at < len(body):
        members += 1
        if members > limits.max_events:
            raise ProblemError(
                413,
                "too-large",
                f"a body may have {limits.max_events:,} gzip members",
                fix="Compress the events of a request together",
            )
        if members > 1 and not body.startswith(_GZIP_MAGIC, at):
            raise EOFError("something follows it")
        member = zlib.decompressobj(GZIP_WINDOW)
        while not member.eof:
            piece = view[at : at + GZIP_PIECE]
            if not piece:
                raise EOFError("it ends too early")
            part = member.decompress(piece, most + 1 - size)
            size += len(part)
            if size > most:
                raise _inflated(most, limits)
            parts.append(part)
            at += len(piece) - len(member.unused_data)
    return b"".join(parts)


def _unzstd(body: bytes, limits: ApiSettings) -> bytes:
    most = _most(body, limits)
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    reader = decompressor.stream_reader(body + _ZSTD_END_FRAME, read_across_frames=True)
    content = reader.read(most + len(_ZSTD_END) + 1)
    if len(content) > most + len(_ZSTD_END):
        raise _inflated(most, limits)
    if not content.endswith(_ZSTD_END):
        raise EOFError("it ends too early")
    return content[: -len(_ZSTD_END)]


def _most(body: bytes, limits: ApiSettings) -> int:
    """Maximum size of this body after decompression, in bytes."""
    return min(limits.max_body_bytes, FREE_BYTES + limits.max_compression * len(body))


def _inflated(most: int, limits: ApiSettings) -> ProblemError:
    if most == limits.max_body_bytes:
        return too_large(most)
    return ProblemError(
        413,
        "too-large",
        f"the body is compressed more than {limits.max_compression} times",
        fix="Send it with less compression, or uncompressed",
    )


_DECOMPRESS: dict[str, Callable[[bytes, ApiSettings], bytes]] = {"gzip": _gunzip, "zstd": _unzstd}
