"""MinIO accounts that vend credentials, made with MinIO's root key.

One is Pulse's own, whose keys never leave Pulse. Each tenant has another, for the keys of its engines: the
holder of a key may revoke all that its account has issued, whatever policies say.
"""

import io
import time
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson

from pulse_resources.errors import Terminal, Transient
from pulse_resources.settings import Settings
from pulse_resources.settings.service_settings import ObjectStoreSettings
from pulse_resources.store_keys import store_key, vended
from pulse_resources.store_keys.store_key import StoreKey

_IMPORT = "/minio/admin/v3/import-iam-v2"
_EXPORT = "/minio/admin/v3/export-iam"
_REVOKE = "/minio/admin/v3/revoke-tokens/builtin?fullRevoke=true"
_HEALTH = "/minio/health/live"
_AT_A_TIME = 100
"""Accounts per request; MinIO needs some 7 ms to make one, and 1 ms to export it."""
_PATIENCE_S = 30.0
"""MinIO answers shortly before it has loaded its accounts."""


def ensure_pulse_account(settings: Settings) -> bool:
    """Create or update the account for Pulse's own use, with its policy; idempotent.

    Returns:
        Whether it was created here: on an object store other than MinIO the operator creates accounts.

    Raises:
        Transient, Terminal: MinIO refused.
    """
    return _ensure(settings.object_store, [""])


def ensure_tenant_accounts(settings: Settings, namespaces: Iterable[str]) -> None:
    """Create or update the accounts of tenants, if the settings have such accounts; idempotent.

    Args:
        settings: their key of the object store is MinIO's root.
        namespaces: the tenants'.

    Raises:
        Transient, Terminal: MinIO refused, the object store is not MinIO, or the accounts have no secret.
    """
    store, namespaces = settings.object_store, list(namespaces)
    if namespaces and store.vending_by_tenant and store.vending_secret_key is None:
        raise Terminal(
            "no secret is set from which the secrets of tenants' vending accounts follow",
            fix="Set PULSE_OBJECT_STORE__VENDING_SECRET_KEY, or PULSE_OBJECT_STORE__VENDING_BY_TENANT=false",
            store=store.endpoint,
        )
    while namespaces and store.vending_by_tenant:
        if not _ensure(store, namespaces[:_AT_A_TIME]):
            raise Terminal(
                "this object store does not let Pulse make accounts that vend credentials",
                fix="Set PULSE_OBJECT_STORE__VENDING_BY_TENANT=false, unless it is MinIO",
                store=store.endpoint,
            )
        del namespaces[:_AT_A_TIME]


def find_missing(settings: Settings, namespaces: Iterable[str]) -> list[str]:
    """Namespaces of tenants that have no account, or one with another secret than the settings give it.

    Raises:
        Transient, Terminal: MinIO refused.
    """
    store = settings.object_store
    content = _administer(store, "GET", _EXPORT) if store.vending_by_tenant else None
    if content is None:
        return list(namespaces)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        users = orjson.loads(archive.read("iam-assets/users.json"))
    accounts = {namespace: vended.account(store, namespace) for namespace in namespaces}
    return [
        namespace
        for namespace, key in accounts.items()
        if users.get(key.access_key, {}).get("secretKey") != key.secret_key
    ]


def is_minio(settings: Settings) -> bool:
    """Whether the object store says that it is MinIO. Raises Transient: it does not answer."""
    answer = _send(settings.object_store, None, "GET", _HEALTH)
    return bool(answer.headers.get("Server", "").startswith("MinIO"))


def revoke(settings: Settings, key: StoreKey) -> int:
    """Revoke all keys of the account that issued `key`, as its holder can; returns MinIO's status."""
    return int(_send(settings.object_store, key, "POST", _REVOKE).status_code)


def _ensure(store: ObjectStoreSettings, namespaces: Iterable[str]) -> bool:
    if store.vending_secret_key is None:
        return False
    keys = {namespace: vended.account(store, namespace) for namespace in namespaces}
    policies = {key.access_key: vended.account_policy(store.bucket, of) for of, key in keys.items()}
    documents: Mapping[str, Any] = {
        "policies": policies,
        "users": {k.access_key: {"secretKey": k.secret_key, "status": "enabled"} for k in keys.values()},
        "user_mappings": {
            name: {"version": 1, "policy": name, "updatedAt": "0001-01-01T00:00:00Z"} for name in policies
        },
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for title, document in documents.items():
            archive.writestr(f"iam-assets/{title}.json", orjson.dumps(document))
    content = _administer(store, "PUT", _IMPORT, packed.getvalue())
    if content is None:
        return False
    if any((orjson.loads(content).get("failed") or {}).values()):
        raise Terminal("MinIO did not make the account that vends credentials", account=min(policies))
    return True


def _administer(store: ObjectStoreSettings, method: str, path: str, body: bytes = b"") -> bytes | None:
    """MinIO's response to root; None if the store does not know the request."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        answer = _send(store, store_key.of(store), method, path, body)
        if answer.status_code == 200:
            return bytes(answer.content)
        if answer.status_code != 503:
            # Other stores read it as an object of a bucket `minio`, or as unknown.
            if b"<Error>" in answer.content or answer.status_code in (404, 405, 501):
                return None
            raise Terminal(
                f"MinIO did not make the account that vends credentials: {answer.status_code} "
                f"{answer.content[:200].decode(errors='replace')}",
                fix="Its root has to be PULSE_OBJECT_STORE__ACCESS_KEY while Pulse is set up",
                store=store.endpoint,
            )
        if time.monotonic() > deadline:
            raise Transient("MinIO is not ready to make accounts", store=store.endpoint)
        time.sleep(0.2)


def _send(store: ObjectStoreSettings, key: StoreKey | None, method: str, path: str, body: bytes = b"") -> Any:
    """MinIO's response to a request outside S3's protocol, signed by a key."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
    from botocore.exceptions import BotoCoreError
    from botocore.httpsession import URLLib3Session

    session = URLLib3Session(verify=str(store.ca_file) if store.ca_file else True, timeout=10)
    host = {"Host": urlsplit(store.endpoint).netloc}
    request = AWSRequest(method, store.endpoint.rstrip("/") + path, host, body)
    if key is not None:
        credentials = Credentials(key.access_key, key.secret_key, key.session_token)
        S3SigV4Auth(credentials, "s3", store.region).add_auth(request)
    try:
        return session.send(request.prepare())
    except BotoCoreError as error:
        raise Transient("MinIO does not answer", store=store.endpoint, error=error) from None
