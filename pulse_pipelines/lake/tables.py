"""A table as an engine loads it: its metadata, and a short-lived key that opens its files."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from urllib.parse import quote

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import catalog, metadata, paths, room
from pulse_pipelines.lake.metadata import Metadata
from pulse_pipelines.lake.names import EVENTS, SEPARATOR, Levels
from pulse_resources import vended
from pulse_resources.settings import load_settings
from pulse_resources.vended import Credentials, Mode


@dataclass(frozen=True)
class Loaded:
    """A table at one moment, and the key to its files."""

    metadata: Metadata
    credentials: Credentials
    config: Mapping[str, str]
    """Properties by which Iceberg's clients reach the files, the secrets among them: never log it."""

    @property
    def etag(self) -> str:
        """Another one as soon as there is another snapshot, or another key."""
        text = f"{self.metadata.at} {self.credentials.access_key}"
        return f'W/"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'


def load(tenant: Tenant, namespace: Levels, table: str, *, may_write: bool = False) -> Loaded:
    """The table as it is now.

    Args:
        may_write: the key is to open its files for writing, too, as far as the tenant has room; what is in
            `events` only Pulse writes.

    Raises:
        NoSuchTable: the tenant has none of this name.
        Transient, Terminal: the object store gives no key, or the metadata is not there.
        OSError: the object store failed.
    """
    found = metadata.read(tenant, catalog.location(tenant, namespace, table))
    return opened(tenant, namespace, table, found, may_write=may_write)


def opened(tenant: Tenant, namespace: Levels, table: str, found: Metadata, *, may_write: bool) -> Loaded:
    """A table's metadata with a key to its files. Raises as `load`."""
    own = namespace != EVENTS and paths.is_location(tenant, found.location)
    writes = own and may_write and room.has_bytes(tenant)
    key = vended.credentials([found.location], Mode.WRITE if writes else Mode.READ)
    return Loaded(found, key, config(key, namespace, table))


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
