"""Metadata files of tables, as the catalog serves them: read with keys that open only that tenant's files.

So a wrong location in a catalog row never exposes another tenant's file. Metadata files are immutable:
the most recently used are cached.
"""

import math
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson
import pyarrow.fs as pafs

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import parsing
from pulse_pipelines.lake.errors import Malformed
from pulse_pipelines.lake.parsing import Document
from pulse_resources import object_store
from pulse_resources.errors import PulseError, Terminal, UserError
from pulse_resources.iceberg.document_weight import LARGEST, TooLarge, check_weight
from pulse_resources.settings import load_settings
from pulse_resources.store_keys import vended
from pulse_resources.store_keys.vended import Credentials, Mode

CLIENTS = 256
"""Cached clients of the object store, one per key."""


@dataclass(frozen=True)
class Metadata:
    """A metadata file as its JSON document."""

    at: str
    content: bytes
    location: str
    """Location of the table; all of its files are below."""

    def document(self) -> Document:
        """The parsed content, a new object at each call; it was weighed when it was read or written.

        Raises:
            Large: as `parsing.check_small`.
        """
        parsing.check_small(len(self.content))
        document: Document = orjson.loads(self.content)
        return document

    def refs_only(self) -> bytes:
        """The document without snapshots that no branch or tag references."""
        document = self.document()
        referenced = {ref["snapshot-id"] for ref in document.get("refs", {}).values()}
        referenced.add(document.get("current-snapshot-id"))
        document["snapshots"] = [s for s in document.get("snapshots", ()) if s["snapshot-id"] in referenced]
        return orjson.dumps(document)


def folder(tenant: Tenant) -> str:
    """The folder of all files of a tenant's tables."""
    return f"s3://{load_settings().object_store.bucket}/iceberg/{tenant.namespace}"


def read(tenant: Tenant, at: str, *, bypass_cache: bool = False) -> Metadata:
    """Read the metadata file that a catalog row of the tenant points at.

    Args:
        bypass_cache: for a file that no row points at yet.

    Raises:
        Terminal: the file is gone, or it, or its table, is not among the tenant's files.
        TooLarge: it would cost too much: tenants write to folders of their own, any content of any size.
        Large: as `parsing.check_small`, unless it is cached.
        Transient: the object store issues no key.
        OSError: the object store failed.
    """
    loaded = None if bypass_cache else _cache.get(tenant, at)
    if loaded is None:
        prefix = vended.prefix_of(folder(tenant))
        if not _within(at, prefix):
            raise Terminal("the table's metadata is not among its tenant's files", tenant=tenant.slug)
        try:
            with file_system(tenant, Mode.READ).open_input_file(object_store.key(at)) as source:
                parsing.check_small(source.size())
                content = source.read(LARGEST + 1)
        except FileNotFoundError:
            raise Terminal("the table's metadata file is gone", tenant=tenant.slug, location=at) from None
        try:
            loaded = Metadata(at, content, str(parsing.loads(content)["location"]))
        except TooLarge as error:
            raise TooLarge(error.message, fix=error.fix, tenant=tenant.slug, location=at) from None
        except (ValueError, TypeError, KeyError):
            raise Terminal("the table's metadata is damaged", tenant=tenant.slug, location=at) from None
        if not _within(loaded.location, prefix):
            raise Terminal("the table is not among its tenant's files", tenant=tenant.slug)
        _cache.put(tenant, loaded)
    return loaded


def write(tenant: Tenant, location: str, version: int, document: Mapping[str, Any]) -> Metadata:
    """Write a metadata file of a table of the tenant's own; no catalog row points at it yet.

    Args:
        location: of the table; the key for the write opens nothing else.

    Raises:
        Malformed: it is too large.
        Transient, Terminal: the object store issues no key.
        OSError: the object store failed.
    """
    at = f"{location}/metadata/{version:05d}-{uuid.uuid4()}.metadata.json"
    content = orjson.dumps(document)
    try:
        check_weight(content, parsing.WRITTEN)
    except TooLarge:
        raise Malformed("the table's metadata is too large", fix="Expire snapshots first") from None
    with client(vended.credentials([location], Mode.WRITE)).open_output_stream(
        object_store.key(at), compression=None
    ) as sink:
        sink.write(content)
    metadata = Metadata(at, content, location)
    _cache.put(tenant, metadata)
    return metadata


def unwritten(document: Mapping[str, Any]) -> Metadata:
    """Metadata of a table that a client is about to create; it has no file."""
    return Metadata("", orjson.dumps(document), document["location"])


def remove(written: Metadata) -> None:
    """Remove a metadata file that was written but never committed."""
    with suppress(OSError, PulseError):  # it is small, and lies in the tenant's own folder
        object_store.delete([written.at], vended.credentials([written.location], Mode.WRITE))


def remove_all(location: str, until: float = math.inf) -> bool:
    """Remove all files below the folder of a table of the tenant's own, with a key that opens nothing else.

    Metadata is removed last: a partly removed table can be registered, and dropped again.

    Args:
        until: moment, by `time.monotonic`, after which no more than a request's worth of files is removed.

    Returns:
        Whether all are removed.

    Raises:
        Transient, Terminal: the object store issues no key.
        OSError: the object store failed; some files may be left.
    """
    key, last = vended.credentials([location], Mode.WRITE), list[str]()
    for number, page in enumerate(object_store.pages(location, key)):
        if number and time.monotonic() > until:
            return False
        object_store.delete((path for path in page if not _is_metadata(path)), key)
        last += filter(_is_metadata, page)
    for start in range(0, len(last), object_store.DELETES):
        if start and time.monotonic() > until:
            return False
        object_store.delete(last[start : start + object_store.DELETES], key)
    return True


def _is_metadata(path: str) -> bool:
    return path.endswith(".metadata.json")


def forget() -> None:
    """Clear the cache (between tests)."""
    _cache.clear()


def _within(location: str, prefix: str) -> bool:
    """Whether a location is in a folder of the bucket, and not the whole bucket."""
    try:
        below = vended.prefix_of(location)
    except UserError:
        return False
    return below.startswith(prefix) and below != prefix


def file_system(tenant: Tenant, mode: Mode) -> pafs.S3FileSystem:
    """A client of the object store that can open only the files of this tenant's tables.

    Raises:
        Transient, Terminal: the object store issues no key.
    """
    return client(vended.credentials([folder(tenant)], mode))


@lru_cache(CLIENTS)
def client(key: Credentials) -> pafs.S3FileSystem:
    """A client of the object store with this key."""
    return object_store.file_system_of(key)


class _MetadataCache:
    """LRU cache of metadata files, limited by bytes."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[str, str], Metadata] = OrderedDict()

    def get(self, tenant: Tenant, at: str) -> Metadata | None:
        with self._lock:
            entry = self._entries.get((tenant.namespace, at))
            if entry is not None:
                self._entries.move_to_end((tenant.namespace, at))
            return entry

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    def put(self, tenant: Tenant, metadata: Metadata) -> None:
        with self._lock:
            if (tenant.namespace, metadata.at) in self._entries:
                return
            self._entries[tenant.namespace, metadata.at] = metadata
            self._bytes += len(metadata.content)
            while self._bytes > self._most and self._entries:
                self._bytes -= len(self._entries.popitem(last=False)[1].content)


_cache = _MetadataCache(64 * 1024 * 1024)
