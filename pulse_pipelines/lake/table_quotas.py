"""Quotas of a tenant's own tables: their number, and the bytes of their files.

Tables and views are counted in the transaction that creates one. Bytes are those of all files in the folders
of the tenant's own tables as the object store lists them, whoever wrote them and whether or not a snapshot
references them; the sum is reused for a while, and only made for tenants with such a quota. Beyond the
quota a tenant can only read and drop.

A key of the object store writes as many files as its holder likes, also empty ones. So they are listed page
by page, by one thread of a process for each tenant, and that for a tenth of the time at most.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pulse_pipelines.domain.quota import limited
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import metadata, names, paths
from pulse_pipelines.lake.catalog import ROLE
from pulse_pipelines.lake.errors import Malformed
from pulse_pipelines.registry import quotas
from pulse_resources import iceberg, postgres
from pulse_resources.errors import QuotaExceeded
from pulse_resources.object_store import page_sizes
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.store_keys import vended
from pulse_resources.store_keys.vended import Mode

FRESH_S = 30.0
"""How long the result of a listing is reused, in seconds: at least, and ..."""
FRESH_SHARE = 10.0
"""... so many times as long as the listing took."""
LEAST_BYTES = 4096
"""A file counts as this many bytes at least: an empty one takes more than its content, too."""
MAX_CACHED = 10_000
COUNT = """
SELECT count(*) FROM iceberg_catalog.iceberg_tables
WHERE catalog_name = %s AND starts_with(table_namespace, %s)
"""
IN_USE = """
SELECT 1 FROM iceberg_catalog.iceberg_tables
WHERE catalog_name = %s AND starts_with(metadata_location, %s || '/') LIMIT 1
"""
REMOVED = "SELECT 1 FROM lake_purges WHERE location = %s"


@dataclass(frozen=True)
class _CachedUsage:
    until: float
    over: str | None
    """The message about the exceeded quota; None: there is room."""


_usages: dict[Tenant, _CachedUsage] = {}
_listing: dict[Tenant, threading.Lock] = {}
"""Held by the thread that lists a tenant's files."""
_lock = threading.Lock()


def forget() -> None:
    """Discard all listings, so that the next check makes a new one (between tests)."""
    _usages.clear()


def admit(connection: postgres.Connection, tenant: Tenant, locations: Sequence[str], new: int) -> None:
    """Admit tables in these folders, in this transaction; takes a lock per tenant.

    Args:
        new: how many of them are new; others get another folder.

    Raises:
        QuotaExceeded: the tenant has its maximum number of tables.
        Malformed: another table has one of the folders: a key would open both; or its files are removed.
    """
    locks.wait(connection, Lock.LAKE, tenant.tenant_id)
    limit = quotas.load_limits(connection).max_lake_tables
    ((count,),) = connection.execute(COUNT, [iceberg.CATALOG, names.tenant_root(tenant)]).fetchall()
    if limited(limit) and new and count + new > limit:
        raise QuotaExceeded(
            f"the tenant has {count} tables and views of its own and may have {limit}",
            fix="Drop one, or ask the operator for more",
            tenant=tenant.slug,
        )
    for location in locations:
        if in_use(connection, location):
            raise Malformed("another table has this folder", fix="Drop it, or give it another name")
        if connection.execute(REMOVED, [location]).fetchone():
            raise Malformed("the files of this folder were removed", fix="Create the table again")


def in_use(connection: postgres.Connection, location: str) -> bool:
    """Whether a table or view of the tenant has this folder."""
    return connection.execute(IN_USE, [iceberg.CATALOG, location]).fetchone() is not None


def admit_bytes(tenant: Tenant) -> None:
    """Admit further writes. Raises QuotaExceeded: the tenant has used up its bytes."""
    if (over := _cached_usage(tenant).over) is not None:
        raise QuotaExceeded(
            over, fix="Drop a table with its files, or ask the operator for more", tenant=tenant.slug
        )


def has_bytes(tenant: Tenant) -> bool:
    """Whether the tenant may write more."""
    return _cached_usage(tenant).over is None


def _cached_usage(tenant: Tenant) -> _CachedUsage:
    usage = _usages.get(tenant)
    if usage is not None and time.monotonic() < usage.until:
        return usage
    with _lock:
        listing = _listing.setdefault(tenant, threading.Lock())
    # The others use the earlier result meanwhile. Without one they wait.
    if not listing.acquire(blocking=usage is None):
        assert usage is not None  # noqa: S101 - see `blocking`
        return usage
    try:
        latest = _usages.get(tenant)
        if latest is not None and latest is not usage:
            return latest
        return _list(tenant)
    finally:
        listing.release()


def _list(tenant: Tenant) -> _CachedUsage:
    began = time.monotonic()
    with postgres.tenant_transaction(ROLE, tenant.tenant_id) as connection:
        limit = quotas.load_limits(connection).max_lake_bytes
    over = _over(tenant, limit) if limited(limit) else None
    now = time.monotonic()
    usage = _CachedUsage(now + max(FRESH_S, FRESH_SHARE * (now - began)), over)
    with _lock:
        _usages[tenant] = usage
        while len(_usages) > MAX_CACHED:
            oldest = next(iter(_usages))
            _usages.pop(oldest)
            _listing.pop(oldest, None)
    return usage


def _over(tenant: Tenant, limit: int) -> str | None:
    size = 0
    key = vended.credentials([metadata.folder(tenant)], Mode.READ)
    for sizes in page_sizes.sizes(paths.tenant_folder(tenant), key):
        size += sum(max(LEAST_BYTES, file) for file in sizes)
        if size >= limit:
            return f"the files of the tenant's own tables have at least {size:,} bytes and may have {limit:,}"
    return None
