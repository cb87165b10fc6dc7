"""Loading a table for an engine: its metadata, and a short-lived key for its files."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from urllib.parse import quote

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import catalog, metadata, paths, table_quotas
from pulse_pipelines.lake.metadata import Metadata
from pulse_pipelines.lake.names import EVENTS, SEPARATOR, Levels
from pulse_resources.settings import load_settings
from pulse_resources.store_keys import vended
from pulse_resources.store_keys.vended import Credentials, Mode


@dataclass(frozen=True)
class Loaded:
    """A table's metadata at one moment, and the key to its files."""

    metadata: Metadata
    credentials: Credentials
    config: Mapping[str, str]
    """Properties by which Iceberg's clients access the files, with secrets: never log them."""

    @property
    def etag(self) -> str:
        """Changes with every snapshot and every key."""
        text = f"{self.metadata.at} {self.credentials.access_key}"
        return f'W/"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'


def load(tenant: Tenant, namespace: Levels, table: str, *, may_write: bool = False) -> Loaded:
    """Load the current state of a table.

    Args:
        may_write: the key also permits writing, provided the tenant has room; tables in `events` only Pulse
            writes.

    Raises:
        NoSuchTable: the tenant has none of this name.
        Transient, Terminal: the object store issues no key, or the metadata is missing.
        OSError: the object store failed.
    """
    current = metadata.read(tenant, catalog.location(tenant, namespace, table))
    return opened(tenant, namespace, table, current, may_write=may_write)


def opened(tenant: Tenant, namespace: Levels, table: str, current: Metadata, *, may_write: bool) -> Loaded:
    """Combine a table's metadata with a key to its files. Raises as `load`."""
    writable = namespace != EVENTS and paths.is_location(tenant, current.location)
    writes = writable and may_write and table_quotas.has_bytes(tenant)
    mode = Mode.WRITE if writes else Mode.READ
    key = vended.credentials([current.location], mode, to_tenant=True)
    return Loaded(current, key, config(key, namespace, table))


def config(key: Credentials, namespace: Levels, table: str) -> dict[str, str]:
    """Properties of Iceberg's clients, in Java and Python, for a key."""
    store = load_settings().object_store
    where = f"v1/namespaces/{quote(SEPARATOR.join(namespace), safe='')}/tables/{quote(table, safe='')}"
    return {
        "s3.endpoint": store.linked_endpoint,
        "s3.access-key-id": key.access_key,
        "s3.secret-access-key": key.secret_key,
        "s3.session-token": key.session_token,
        "s3.session-token-expires-at-ms": str(int(key.expires_at.astimezone(UTC).timestamp() * 1000)),
        "s3.path-style-access": "true",
        "s3.region": store.region,
        "client.region": store.region,
        "client.refresh-credentials-endpoint": f"{where}/credentials",
    }
