"""Small objects are written by one request; whatever is not as usual is left to Arrow's client."""

import os
import socket
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from chaos.surroundings import with_settings
from pulse_resources import object_store
from pulse_resources.object_store import small_put
from pulse_resources.settings import load_settings

pytestmark = pytest.mark.usefixtures("stack")


@pytest.fixture
def path() -> Iterator[str]:
    """A place for an object whose name has what must be quoted in a request."""
    uri = f"s3://pulse/test/{uuid.uuid4().hex}/day=2026-11-25 é+(1)/~a_b.c-d"
    yield uri
    object_store.delete([uri])


def content(path: str) -> bytes:
    """What the store has, by Arrow's client."""
    with object_store.file_system().open_input_file(object_store.key(path)) as source:
        read: bytes = source.read()
    return read


def broken(*_: object) -> pafs.S3FileSystem:
    raise AssertionError("Arrow's client is not needed")


@pytest.mark.parametrize(
    "given", [b"", b"a" * 1_000_000, pa.py_buffer(b"\0\xff")], ids=["no", "much", "arrow"]
)
def test_one_request_writes_a_small_object(
    path: str, given: bytes | pa.Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(object_store, "file_system", broken)
            object_store.put(path, given)
        assert content(path) == bytes(given)


def test_connections_that_broke_are_left_for_a_new_one(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = load_settings().object_store
    idle = small_put._idle[store.endpoint, store.ca_file]
    broken_ones = [small_put._connection(store.endpoint, store.ca_file) for _ in range(3)]
    for connection in broken_ones:
        connection.connect()
        connection.sock.shutdown(socket.SHUT_RDWR)
    idle.extend(broken_ones)
    monkeypatch.setattr(object_store, "file_system", broken)
    object_store.put(path, b"after")
    monkeypatch.undo()
    assert content(path) == b"after"
    assert not set(broken_ones) & set(idle)


def test_a_store_that_cannot_be_reached_is_left_to_arrow(path: str) -> None:
    with with_settings(OBJECT_STORE__ENDPOINT="http://127.0.0.1:1"):
        assert not small_put.put(object_store.key(path), memoryview(b"a"))


def test_a_child_has_connections_of_its_own(path: str) -> None:
    store = load_settings().object_store
    object_store.put(path, b"of the parent")
    assert small_put._idle[store.endpoint, store.ca_file]
    child = os.fork()
    if child == 0:
        os._exit(len(small_put._idle[store.endpoint, store.ca_file]))
    assert os.waitpid(child, 0)[1] == 0
    object_store.put(path, b"of the parent again")
    assert content(path) == b"of the parent again"


def test_a_put_that_the_store_refuses_is_an_error(path: str) -> None:
    with with_settings(OBJECT_STORE__SECRET_KEY="wrong"):
        assert not small_put.put(object_store.key(path), memoryview(b"a"))
        object_store.file_system.cache_clear()
        with pytest.raises(OSError, match=r"SignatureDoesNotMatch|signature"):
            object_store.put(path, b"a")
    object_store.file_system.cache_clear()


def test_a_large_object_is_written_by_arrow(path: str) -> None:
    large = bytes(small_put.MOST_BYTES + 1)
    assert not small_put.put(object_store.key(path), memoryview(large))
    object_store.put(path, large)
    assert len(content(path)) == len(large)
