"""Small objects, each written by one signed request over connections that stay open.

Arrow's client needs several times as much processor time for one, and the store a third more. Whatever is not
as usual here (a role's key, an answer other than 200, a store that cannot be reached) is left to Arrow, which
tries again and tells what is wrong: writing an object twice changes nothing.
"""

import atexit
import hashlib
import hmac
import os
import ssl
from collections import defaultdict, deque
from datetime import UTC, datetime
from functools import cache, lru_cache
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import quote, urlsplit

from pulse_resources.settings import load_settings
from pulse_resources.settings.service_settings import ObjectStoreSettings
from pulse_resources.store_keys import store_key

MOST_BYTES = 4 * 1024 * 1024
TIMEOUT_S = 10.0
_OK = 200
_METHOD = "AWS4-HMAC-SHA256"


def put(path: str, content: memoryview) -> bool:
    """Write a whole object, `<bucket>/<key>`; False if it may not have been written."""
    store = load_settings().object_store
    if content.nbytes > MOST_BYTES or store.by_role:
        return False
    idle = _idle[store.endpoint, store.ca_file]
    while True:
        try:
            connection, used = idle.pop(), True
        except IndexError:
            connection, used = _connection(store.endpoint, store.ca_file), False
        try:
            status = _request(connection, store, path, content)
        except (OSError, HTTPException) as error:
            connection.close()
            if used and not isinstance(error, TimeoutError):  # closed meanwhile by a store that was restarted
                continue
            return False
        if status != _OK:
            connection.close()
            return False
        idle.append(connection)
        return True


def _request(connection: HTTPConnection, store: ObjectStoreSettings, path: str, content: memoryview) -> int:
    place = "/" + quote(path)
    connection.request("PUT", place, content, _headers(store, place, content))
    with connection.getresponse() as answer:
        answer.read()
    return answer.status


_idle: defaultdict[tuple[str, Path | None], deque[HTTPConnection]] = defaultdict(deque)
"""This process's idle connections, by address and authorities of the store."""


def _close_idle() -> None:
    for connections in _idle.values():
        while connections:
            connections.pop().close()


atexit.register(_close_idle)
os.register_at_fork(after_in_child=_close_idle)  # they stay open for the parent


def _connection(endpoint: str, ca_file: Path | None) -> HTTPConnection:
    at = urlsplit(endpoint)
    if at.scheme == "https":
        return HTTPSConnection(at.netloc, timeout=TIMEOUT_S, context=_authorities(ca_file))
    return HTTPConnection(at.netloc, timeout=TIMEOUT_S)


@cache
def _authorities(ca_file: Path | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file)


def _headers(store: ObjectStoreSettings, place: str, content: memoryview) -> dict[str, str]:
    """Headers of a request signed by AWS's Signature Version 4, with the content's hash."""
    key, digest = store_key.of(store), hashlib.sha256(content).hexdigest()
    at = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    headers = {"host": urlsplit(store.endpoint).netloc, "x-amz-content-sha256": digest, "x-amz-date": at}
    if key.session_token:
        headers["x-amz-security-token"] = key.session_token
    names = ";".join(headers)  # in the order of the alphabet, as is required
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = hashlib.sha256(f"PUT\n{place}\n\n{lines}\n{names}\n{digest}".encode()).hexdigest()
    scope = f"{at[:8]}/{store.region}/s3/aws4_request"
    signature = hmac.digest(
        _signing_key(key.secret_key, scope), f"{_METHOD}\n{at}\n{scope}\n{request}".encode(), "sha256"
    ).hex()
    signed = f"Credential={key.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return headers | {"authorization": f"{_METHOD} {signed}"}


@lru_cache(maxsize=4)  # a day's
def _signing_key(secret: str, scope: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
