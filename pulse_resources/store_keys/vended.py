"""Vended credentials: short-lived keys of the object store, limited to some prefixes of Pulse's bucket.

The store's STS issues them (AssumeRole with an inline policy) to an account with no more rights than may be
vended: access to tables. Such a key opens the prefixes in it, and nothing else, until it expires. Keys are
cached per process, and reused while at least a third of their lifetime is left; those that tenants get, for a
minute.

Whoever holds a key of MinIO may revoke all keys of the account that it was issued to. So keys that tenants
get are issued to an account of the tenant's (`vending_by_tenant`), and those that stay in Pulse to another.
"""

import hmac
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import orjson

from pulse_resources.errors import PulseError, Terminal, Transient, UserError
from pulse_resources.resettable import Resettable
from pulse_resources.settings import Settings, load_settings
from pulse_resources.settings.service_settings import ObjectStoreSettings
from pulse_resources.store_keys.store_key import StoreKey

LONGEST_POLICY = 2_048
"""STS's limit for a policy, in characters."""
TO_TENANT_S = 60.0
"""A key that a tenant gets is reused for so long: its holder may revoke it, which only its use would show."""
CACHED = 10_000
"""Cached keys per process; the oldest is evicted first."""
_PART = re.compile(r"(?!\.+\Z)[A-Za-z0-9_=.-]+")
"""A path segment without characters that policies, URLs or file systems interpret (`..`, `*`, `%`)."""
_READING = ("s3:GetObject",)
_WRITING = (
    *_READING,
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:AbortMultipartUpload",
    "s3:ListMultipartUploadParts",
)
_WRONG_ACCOUNT = frozenset(
    {"AccessDenied", "InvalidAccessKeyId", "InvalidClientTokenId", "SignatureDoesNotMatch"}
)


class Mode(StrEnum):
    """Permissions of a key below its prefixes."""

    READ = "read"
    """Read and list."""
    WRITE = "write"
    """Read, list, write and delete."""


@dataclass(frozen=True)
class Credentials(StoreKey):
    """A short-lived key; only its public part is ever shown."""

    session_token: str = field(repr=False)
    expires_at: datetime
    """By the object store's clock, with a time zone."""
    got_at: float = field(default_factory=time.monotonic, repr=False, compare=False)
    """When this process got it, by the monotonic clock."""


def prefix_of(location: str) -> str:
    """The prefix in Pulse's bucket below a location, `s3://bucket/a/b` or `s3://bucket/a/b/`.

    Raises:
        UserError: it is in another bucket, it is all of the bucket, or its text is not plain: a policy must
            compare exactly the text that the object store opens.
    """
    bucket, _, path = location.removeprefix("s3://").partition("/")
    parts = path.removesuffix("/").split("/")
    plain = location.startswith("s3://") and all(_PART.fullmatch(part) for part in parts)
    if bucket != load_settings().object_store.bucket or not plain:
        raise UserError(
            "no credentials can be made for this location",
            fix="Name a folder of Pulse's bucket in letters, digits, _, =, - and single dots",
            location=location[:200],
        )
    return "/".join(parts) + "/"


def credentials(locations: Iterable[str], mode: Mode, *, to_tenant: bool = False) -> Credentials:
    """Get a key for all below some locations (`s3://bucket/folder`), with a third of its time left or more.

    Args:
        locations: folders of tables; of one tenant, if the key leaves Pulse.
        mode: what the key permits.
        to_tenant: whether a tenant, or what runs a tenant's code, gets the key.

    Raises:
        UserError: a location is outside Pulse's bucket, or there are too many for one policy.
        Transient: the object store does not answer.
        Terminal: it refuses the vending account, or none is configured.
    """
    grant = _grant(locations, mode, to_tenant)
    with _lock(grant):
        key = _fresh(grant)
        if key is None:
            key = _cache[grant] = _assume(grant)
            while len(_cache) > CACHED:
                _cache.pop(next(iter(_cache)), None)
    return key


def cached(locations: Iterable[str], mode: Mode) -> Credentials | None:
    """Like `credentials`, but from the cache only, without a request."""
    return _fresh(_grant(locations, mode, to_tenant=False))


def drop(access_keys: Collection[str]) -> None:
    """Remove keys from the cache, which may have been revoked."""
    for grant, key in list(_cache.items()):
        if key.access_key in access_keys:
            _cache.pop(grant, None)


def forget() -> None:
    """Clear the cache (between tests, and after a change of settings)."""
    _cache.clear()
    _client.cache_clear()


_Grant = tuple[Mode, tuple[str, ...], str]
"""Permissions, the prefixes of the bucket that they apply to, and the namespace of the tenant that gets the
key; "": it stays in Pulse."""
_cache: dict[_Grant, Credentials] = {}
_locks = [threading.Lock() for _ in range(64)]
"""Locks by key, so that concurrent requests for the same credentials make one call."""


def _grant(locations: Iterable[str], mode: Mode, to_tenant: bool) -> _Grant:
    prefixes = tuple(sorted({prefix_of(location) for location in locations}))
    if not prefixes:
        raise UserError("credentials are for one location or more")
    if not (to_tenant and load_settings().object_store.vending_by_tenant):
        return mode, prefixes, ""
    folders = {tuple(prefix.split("/")[:2]) for prefix in prefixes}
    if len(folders) > 1:
        raise UserError("credentials are for the tables of one tenant")
    return mode, prefixes, folders.pop()[1]


def _lock(grant: _Grant) -> threading.Lock:
    return _locks[hash(grant) % len(_locks)]


def _fresh(grant: _Grant) -> Credentials | None:
    key, namespace = _cache.get(grant), grant[2]
    if key and namespace and time.monotonic() - key.got_at >= TO_TENANT_S:
        return None
    remaining = timedelta(seconds=load_settings().object_store.vended_seconds / 3)
    return key if key and key.expires_at - datetime.now(UTC) > remaining else None


def policy(bucket: str, prefixes: Iterable[str], actions: Iterable[str]) -> dict[str, Any]:
    """Build an S3 policy that allows actions on objects below prefixes (`a/b/`), and listing these."""
    below, place = list(prefixes), f"arn:aws:s3:::{bucket}"
    objects = {
        "Effect": "Allow",
        "Action": list(actions),
        "Resource": [f"{place}/{prefix}*" for prefix in below],
    }
    listing = {
        "Effect": "Allow",
        "Action": ["s3:ListBucket"],
        "Resource": [place],
        "Condition": {"StringLike": {"s3:prefix": [f"{prefix}*" for prefix in below]}},
    }
    return {"Version": "2012-10-17", "Statement": [objects, listing]}


def account(store: ObjectStoreSettings, namespace: str) -> StoreKey:
    """The account that issues keys to the tenant with this namespace; "": that of Pulse's own use."""
    secret = store.vending_secret_key.get_secret_value() if store.vending_secret_key else ""
    if not namespace:
        return StoreKey(store.vending_access_key, secret, None)
    derived = hmac.digest(secret.encode(), namespace.encode(), "sha256").hex()
    return StoreKey(f"{store.vending_access_key}-{namespace}", derived, None)


def account_policy(bucket: str, namespace: str) -> dict[str, Any]:
    """Policy of an account: the maximum that it can vend, the tables of one tenant; "": those of all.

    MinIO lets accounts create further keys for themselves; this policy denies that, also for vended keys.
    """
    tables = policy(bucket, [f"iceberg/{namespace}/" if namespace else "iceberg/"], _WRITING)
    tables["Statement"].append({"Effect": "Deny", "Action": ["admin:*"], "Resource": ["arn:aws:s3:::*"]})
    return tables


def _assume(grant: _Grant) -> Credentials:
    from botocore.exceptions import BotoCoreError, ClientError  # a quarter of a second, only to vend

    mode, prefixes, namespace = grant
    store = load_settings().object_store
    text = orjson.dumps(policy(store.bucket, prefixes, _READING if mode is Mode.READ else _WRITING)).decode()
    if len(text) > LONGEST_POLICY:
        raise UserError(
            f"{len(prefixes)} locations are too many for one key",
            fix="Ask for a folder that holds them, or for fewer at a time",
        )
    try:
        answer = _client()(
            account(store, namespace),
            RoleArn=store.vending_role,
            RoleSessionName="pulse",
            Policy=text,
            DurationSeconds=store.vended_seconds,
        )["Credentials"]
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        raise _refused(code, store.endpoint, namespace) from None
    except BotoCoreError as error:
        raise Transient("the object store vends no credentials", store=store.endpoint, error=error) from None
    return Credentials(
        answer["AccessKeyId"], answer["SecretAccessKey"], answer["SessionToken"], answer["Expiration"]
    )


def _refused(code: str, store: str, namespace: str) -> PulseError:
    if code in _WRONG_ACCOUNT and namespace:
        return Terminal(
            f"the object store refuses the account that vends credentials to this tenant ({code})",
            fix="The HTTP API makes the accounts of tenants when it starts, with MinIO's root key: start it"
            " again, and read its log",
            store=store,
            namespace=namespace,
        )
    if code in _WRONG_ACCOUNT:
        return Terminal(
            f"the object store refuses the account that vends credentials ({code})",
            fix="Run `python -m pulse_resources.local.prepare minio` as MinIO's root, or make"
            " the account that PULSE_OBJECT_STORE__VENDING_ACCESS_KEY and …_SECRET_KEY name",
            store=store,
        )
    return Transient(f"the object store vends no credentials ({code or 'no reason given'})", store=store)


@Resettable
def _client() -> Callable[..., Any]:
    """AssumeRole of the process's cached STS client."""
    return assume_role(load_settings())


def assume_role(settings: Settings) -> Callable[..., Any]:
    """AssumeRole as the account that is its first argument; raises botocore's errors.

    Raises:
        Terminal: no account is configured.
    """
    from botocore.config import Config
    from botocore.credentials import Credentials as Signing
    from botocore.session import Session

    store = settings.object_store
    if store.vending_secret_key is None:
        raise Terminal(
            "no account of the object store vends credentials",
            fix="Name one: PULSE_OBJECT_STORE__VENDING_ACCESS_KEY and PULSE_OBJECT_STORE__VENDING_SECRET_KEY",
            store=store.endpoint,
        )
    pulse = account(store, "")
    client = Session().create_client(
        "sts",
        region_name=store.region,
        endpoint_url=store.sts_endpoint or store.endpoint,
        verify=str(store.ca_file) if store.ca_file else True,
        aws_access_key_id=pulse.access_key,
        aws_secret_access_key=pulse.secret_key,
        config=Config(connect_timeout=3, read_timeout=10, retries={"total_max_attempts": 3}, proxies={}),
    )
    signing = threading.local()

    def sign(context: dict[str, Any], **_: object) -> None:
        context["signing"] = {"request_credentials": signing.key}

    # A client takes 0.1 s of a core to make: one serves all accounts.
    client.meta.events.register("provide-client-params.sts.AssumeRole", sign)

    def assume(account: StoreKey, **parameters: object) -> Any:
        signing.key = Signing(account.access_key, account.secret_key)
        return client.assume_role(**parameters)

    return assume
