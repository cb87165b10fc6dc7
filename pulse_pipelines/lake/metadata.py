"""Tables' metadata files as the catalog serves them: read with keys that open that tenant's files alone.

Whatever a row of the catalog points at, what is read is the tenant's own. A metadata file never changes:
those that were asked for last are kept.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson
import pyarrow.fs as pafs

from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import object_store, vended
from pulse_resources.errors import Terminal, UserError
from pulse_resources.settings import load_settings
from pulse_resources.vended import Credentials, Mode

CLIENTS = 256
"""Clients of the object store that are kept, one for each key."""


@dataclass(frozen=True)
class Metadata:
    """A metadata file, as the JSON that it is."""

    at: str
    content: bytes
    location: str
    """Of the table: everything of it is below."""

    def refs_only(self) -> bytes:
        """The document without the snapshots that no branch and no tag points at."""
        document: dict[str, Any] = orjson.loads(self.content)
        wanted = {ref["snapshot-id"] for ref in document.get("refs", {}).values()}
        wanted.add(document.get("current-snapshot-id"))
        document["snapshots"] = [s for s in document.get("snapshots", ()) if s["snapshot-id"] in wanted]
        return orjson.dumps(document)


def folder(tenant: Tenant) -> str:
    """Where all files of a tenant's tables are."""
    return f"s3://{load_settings().object_store.bucket}/iceberg/{tenant.namespace}"


def read(tenant: Tenant, at: str) -> Metadata:
    """The metadata file that a row of the tenant points at.

    Raises:
        Terminal: it is gone, or it, or its table, is not among the tenant's files.
        Transient: the object store gives no key.
        OSError: the object store failed.
    """
    found = _kept.get(tenant, at)
    if found is None:
        prefix = vended.prefix_of(folder(tenant))
        if not _within(at, prefix):
            raise Terminal("the table's metadata is not among its tenant's files", tenant=tenant.slug)
        try:
            with file_system(tenant, Mode.READ).open_input_file(object_store.key(at)) as source:
                content = source.read()
        except FileNotFoundError:
            raise Terminal("the table's metadata file is gone", tenant=tenant.slug, location=at) from None
        found = Metadata(at, content, str(orjson.loads(content)["location"]))
        if not _within(found.location, prefix):
            raise Terminal("the table is not among its tenant's files", tenant=tenant.slug)
        _kept.put(tenant, found)
    return found


def _within(location: str, prefix: str) -> bool:
    """Whether a location is in a folder of the bucket, and not all of it."""
    try:
        below = vended.prefix_of(location)
    except UserError:
        return False
    return below.startswith(prefix) and below != prefix


def file_system(tenant: Tenant, mode: Mode) -> pafs.S3FileSystem:
    """A client of the object store that reaches the files of this tenant's tables alone.

    Raises:
        Transient, Terminal: the object store gives no key.
    """
    return _client(vended.credentials([folder(tenant)], mode))


@lru_cache(CLIENTS)
def _client(key: Credentials) -> pafs.S3FileSystem:
    return object_store.file_system_of(key.access_key, key.secret_key, key.session_token)


class _Kept:
    """The metadata files that were asked for last, within so many bytes."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[str, str], Metadata] = OrderedDict()

    def get(self, tenant: Tenant, at: str) -> Metadata | None:
        with self._lock:
            found = self._found.get((tenant.namespace, at))
            if found is not None:
                self._found.move_to_end((tenant.namespace, at))
            return found

    def put(self, tenant: Tenant, metadata: Metadata) -> None:
        with self._lock:
            if (tenant.namespace, metadata.at) in self._found:
                return
            self._found[tenant.namespace, metadata.at] = metadata
            self._bytes += len(metadata.content)
            while self._bytes > self._most and self._found:
                self._bytes -= len(self._found.popitem(last=False)[1].content)


_kept = _Kept(64 * 1024 * 1024)
