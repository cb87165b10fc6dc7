"""Stores of files: an S3 bucket below a prefix, and a web address. Files are read as they were listed."""

import io
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

import httpx

from pulse_pipelines.domain.pipe_sources import Files
from pulse_pipelines.pipes import web
from pulse_resources.errors import NotFound, PulseError, Transient, UserError
from pulse_resources.object_store import s3_client

MOST_FILES = 10_000
MOST_LISTED = 100_000
"""Names in an object store that are compared with a path, at most."""
MOST_RECEIVED = 8 * 1024 * 1024
"""Bytes of a listing's page of a thousand names, or of an error, at most."""
_CONFIGURED = {"endpoint", "region"}
_OF_THE_KEY = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "403"}
_OF_THE_KEY |= {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"}


@dataclass(frozen=True)
class Listed:
    """A file as it was listed."""

    name: str
    """Relative to the source's address."""
    size: int | None
    etag: str | None
    modified: str | None
    is_text: bool = False
    """Whether its format is text, which has a charset."""

    @property
    def is_versioned(self) -> bool:
        """Whether a listing shows when it changes."""
        return self.etag is not None or self.modified is not None


class Store(Protocol):
    """A place with files."""

    place: str
    """Without credentials."""

    def listed(self, files: Files) -> list[Listed]:
        """Files that a path stands for, by name; raises NotFound, UserError and Transient."""

    def opened(self, file: Listed) -> "Any":
        """Context manager of a file's bytes; reading raises Conflict: it changed, and Transient."""


def store(address: str) -> Store:
    """The store at an address. Raises UserError: the address is malformed; the error omits it."""
    return S3(address) if address.startswith("s3://") else Web(address)


class S3:
    """`s3://key:secret@bucket/prefix?endpoint=https://...&region=...`, the last two as needed."""

    def __init__(self, address: str) -> None:
        try:
            parts = urlsplit(address)
            options = {
                name: values[0]
                for name, values in parse_qs(parts.query, strict_parsing=bool(parts.query)).items()
            }
        except ValueError:
            raise UserError("the address of the source is malformed") from None
        bucket = parts.netloc.rpartition("@")[2]
        if not bucket or not parts.username or not parts.password or set(options) - _CONFIGURED:
            raise UserError(
                "the address of the source is malformed",
                fix="It is s3://key:secret@bucket/prefix?endpoint=...&region=...",
            )
        self._bucket, prefix = bucket, parts.path.strip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._key, self._secret = unquote(parts.username), unquote(parts.password)
        self._endpoint, self._region = options.get("endpoint"), options.get("region", "us-east-1")
        self.place = f"{self._endpoint or ''} s3://{bucket}/{self._prefix}"

    def listed(self, files: Files) -> list[Listed]:
        """Files that a path stands for, by name."""
        matching: list[Listed] = []
        count = 0
        with self._client() as client:
            pages = client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + files.prefix):
                for entry in page.get("Contents", ()):
                    name = entry["Key"].removeprefix(self._prefix)
                    if files.matches(name):
                        matching.append(
                            Listed(
                                name,
                                entry["Size"],
                                entry["ETag"],
                                entry["LastModified"].isoformat(),
                                files.is_text,
                            )
                        )
                    count += 1
                if len(matching) > MOST_FILES or count > MOST_LISTED:
                    raise UserError(
                        f"the path matches more than {MOST_FILES:,} files, or few among too many others",
                        fix="Write more of their names before the first *",
                    )
        return sorted(matching, key=lambda entry: entry.name)

    def is_empty(self) -> bool:
        """Whether nothing is below the prefix. Raises as `listed` does."""
        with self._client() as client:
            return not client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1)["KeyCount"]

    @contextmanager
    def opened(self, file: Listed) -> Iterator[BinaryIO]:
        """A file's bytes."""
        with self._client() as client:
            answer = client.get_object(Bucket=self._bucket, Key=self._prefix + file.name, IfMatch=file.etag)
            with closing(answer["Body"]) as body:
                if file.is_text:
                    web.refuse_charset(answer.get("ContentType"))
                pieces = web.paced(iter(partial(body.read, 2**14), b""))
                yield io.BufferedReader(_StreamOfReads(_of_chunks(pieces)), 2**20)

    @contextmanager
    def _client(self) -> Iterator[Any]:
        from botocore.exceptions import BotoCoreError, ClientError  # a quarter of a second

        try:
            client = s3_client.client(self._endpoint, self._region, self._key, self._secret)
        except (BotoCoreError, ValueError):
            raise UserError("the address of the source is malformed") from None
        client.meta.events.register(
            "before-send.s3", partial(_answered, client), unique_id=_answered.__name__
        )
        try:
            yield client
        except ClientError as error:
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            raise refused(str(error.response.get("Error", {}).get("Code", "")), status) from None
        except BotoCoreError as error:  # its text may have the address
            raise Transient(
                f"the source does not answer, or not to the end: {type(error).__name__}"
            ) from None


def _answered(client: Any, request: Any, **_: Any) -> Any:
    """Send a request in botocore's place, which would keep all of an answer that has no end."""
    from botocore.exceptions import ConnectionClosedError
    from urllib3.exceptions import HTTPError

    streams, request.stream_output = request.stream_output, True
    response = client._endpoint.http_session.send(request)
    if streams and response.status_code < 300:
        return response  # of a file, which its reader paces
    content = bytearray()
    with closing(response.raw):
        try:
            for piece in web.paced(response.raw.stream()):
                content += piece
                if len(content) > MOST_RECEIVED:
                    raise UserError(
                        f"the source sends more than {MOST_RECEIVED:,} bytes in a listing or an error",
                        fix="An operator checks its address",
                    )
        except HTTPError as error:
            raise ConnectionClosedError(endpoint_url=request.url, error=error) from None
    response._content = bytes(content)
    return response


def refused(code: str, status: int) -> PulseError:
    """The error of an unsuccessful answer, by S3's code and the status."""
    if code in ("PreconditionFailed", "412"):
        return web.changed()
    if code in ("NoSuchKey", "NoSuchBucket", "404"):
        return NotFound("the source has no such bucket, or a listed file is gone", code=code)
    if code in _OF_THE_KEY:
        return UserError(
            "the source refuses its key",
            fix="An operator checks its address; the key must be allowed to list the bucket, and to read",
            code=code,
        )
    if code == "InvalidObjectState":
        return UserError("a file is archived", fix="Restore it in the store", code=code)
    if web.may_pass(status) or code in ("SlowDown", "RequestTimeout"):
        return Transient(f"the source answers with an error: {code}")
    return UserError("the source refuses the request", fix="An operator checks its address", code=code)


class Web:
    """`https://user:password@host/base/`. It has no listing: a path names one file."""

    def __init__(self, address: str) -> None:
        self._site = web.site(address)
        self.place = self._site.base

    def listed(self, files: Files) -> list[Listed]:
        """The file that a path names."""
        if "*" in files.path:
            raise UserError("a web address has no listing", fix="Name one file, without *")
        with web.client(self._site) as client:
            listed = web.patiently(lambda: self._listed(client, files.path))
            return [replace(listed, is_text=files.is_text)]

    def _listed(self, client: httpx.Client, name: str) -> Listed:
        with web.answer(client, "HEAD", self._url(name), passed=(405, 501)) as response:
            if response.status_code == 200:
                return _listed(name, response)
        with web.answer(client, "GET", self._url(name)) as response:
            return _listed(name, response)

    @contextmanager
    def opened(self, file: Listed) -> Iterator[BinaryIO]:
        """A file's bytes."""
        strong = file.etag is not None and not file.etag.startswith("W/")
        headers = {"If-Match": file.etag} if strong and file.etag else {}
        with web.client(self._site) as client:
            with web.answer(client, "GET", self._url(file.name), headers) as response:
                if _differ(file, _listed(file.name, response)):
                    raise web.changed()
                if file.is_text:
                    web.refuse_charset(response.headers.get("content-type"))
                yield io.BufferedReader(_StreamOfReads(_of_chunks(web.paced(response.iter_raw()))), 2**20)
            # A server continues in a file that is rewritten in place: its answer is a mix of both.
            if _differ(file, web.patiently(lambda: self._listed(client, file.name))):
                raise web.changed()

    def _url(self, name: str) -> str:
        return f"{self._site.base}/{name.replace(' ', '%20')}"


def _listed(name: str, response: httpx.Response) -> Listed:
    size = response.headers.get("content-length", "")
    return Listed(
        name,
        int(size) if size.isdecimal() else None,
        response.headers.get("etag"),
        response.headers.get("last-modified"),
    )


def _differ(one: Listed, other: Listed) -> bool:
    """Whether two answers are of two files, as far as both of them say."""
    pairs = ((one.size, other.size), (one.etag, other.etag), (one.modified, other.modified))
    return any(a is not None and b is not None and a != b for a, b in pairs)


def _of_chunks(chunks: Iterator[bytes]) -> Any:
    buffered = b""

    def read(size: int) -> bytes:
        nonlocal buffered
        buffered = buffered or next(chunks, b"")
        piece, buffered = buffered[:size], buffered[size:]
        return piece

    return read


class _StreamOfReads(io.RawIOBase):
    """A stream over a function that reads; empty bytes are the end."""

    def __init__(self, read: Any) -> None:
        self._read = read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)
