"""Object store: address, permissions on the bucket, and clock."""

import re
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg

from pulse_pipelines.monitoring.doctor.finding import Finding, clock, reached
from pulse_pipelines.monitoring.doctor.transport import Tls, offered
from pulse_pipelines.tables import store_mark
from pulse_resources import object_store
from pulse_resources.errors import PulseError, UserError, first_line
from pulse_resources.settings import Settings
from pulse_resources.store_keys import store_key, vended, vending_accounts
from pulse_resources.store_keys.vended import Mode

STORE = "object store"
_UP = "Start it (`pulse up` starts the embedded one), or correct PULSE_OBJECT_STORE__ENDPOINT"

_BUCKET = re.compile(r"[\w.-]+")
_BEFORE = re.compile(r"^When .*?: (?=AWS Error)")
_COMPARE = (
    "Create the bucket {bucket}, let PULSE_OBJECT_STORE__ACCESS_KEY {step} objects in it, and compare "
    "PULSE_OBJECT_STORE__SECRET_KEY, PULSE_OBJECT_STORE__REGION and, of temporary credentials, "
    "PULSE_OBJECT_STORE__SESSION_TOKEN"
)
_FIXES = (
    # What the store says: what to do.
    (
        "INVALID_ACCESS_KEY_ID|InvalidAccessKeyId",
        "Correct PULSE_OBJECT_STORE__ACCESS_KEY; of temporary credentials, set "
        "PULSE_OBJECT_STORE__SESSION_TOKEN, too",
    ),
    ("SIGNATURE_DOES_NOT_MATCH", "Correct PULSE_OBJECT_STORE__SECRET_KEY"),
    (
        "NO_SUCH_BUCKET",
        "Let `pulse up` create the bucket {bucket}, or correct PULSE_OBJECT_STORE__BUCKET",
    ),
    ("region", "Set PULSE_OBJECT_STORE__REGION to the region of the bucket {bucket}"),
    ("ACCESS_DENIED", "Let PULSE_OBJECT_STORE__ACCESS_KEY {step} objects in the bucket {bucket}"),
    ("NETWORK_CONNECTION", "Correct PULSE_OBJECT_STORE__ENDPOINT: another service may have that port"),
)
_FOLDER = "doctor"
_SHARED = "one account vends the keys of all tenants, and on MinIO each of these can revoke all others"
_BY_TENANT = (
    "Set PULSE_OBJECT_STORE__VENDING_BY_TENANT=true, and start the HTTP API again, which makes an account "
    "for each tenant"
)
_ENCRYPT = (
    "Write https:// in PULSE_OBJECT_STORE__ENDPOINT, and set PULSE_OBJECT_STORE__CA_FILE to the authority of "
    "its certificate"
)


def check_object_store(settings: Settings) -> Iterator[Finding]:
    """Write, list, read and remove an object: all operations that Pulse uses on a bucket."""
    store = settings.object_store
    endpoint = urlsplit(store.endpoint)
    if endpoint.scheme not in ("http", "https") or not endpoint.hostname or endpoint.path.strip("/"):
        fix = "Write PULSE_OBJECT_STORE__ENDPOINT as https://host:port; the bucket has a setting of its own"
        yield Finding(STORE, "address", False, f"{store.endpoint} is not the address of a service", fix)
        return
    if not _BUCKET.fullmatch(store.bucket):
        fix = "Set PULSE_OBJECT_STORE__BUCKET to the name alone, without s3:// and folders"
        yield Finding(STORE, "address", False, f"{store.bucket!r} is not the name of a bucket", fix)
        return
    host, secured = endpoint.hostname, endpoint.scheme == "https"
    port = endpoint.port or (443 if secured else 80)
    at = reached(STORE, host, port, _UP)
    yield at
    if not at.ok:
        return
    if secured:
        fix = "Write http:// in PULSE_OBJECT_STORE__ENDPOINT, or have the store speak TLS"
        settings_of = ("PULSE_OBJECT_STORE__CA_FILE", "PULSE_OBJECT_STORE__ENDPOINT")
        tls_findings = Tls(STORE, "name", store.ca_file, *settings_of, fix).check(host, port)
        yield from tls_findings
        if not tls_findings[0].ok:
            return
    if store.by_role:
        try:
            key = store_key.of(store)
        except UserError as error:
            yield Finding(STORE, "key", False, error.message, error.fix)
            return
        yield Finding(STORE, "key", True, f"{key.access_key}, of the environment")
    folder = f"s3://{store.bucket}/doctor/{uuid4().hex}"
    step = "write"
    try:
        object_store.put(f"{folder}/probe", b"written by pulse doctor\n")
        step = "list"
        (probe,) = object_store.listed(folder)
        step = "read"
        with object_store.file_system().open_input_stream(object_store.key(probe.path)) as stream:
            stream.read()
        step = "delete"
        object_store.delete([probe.path])
    except OSError as error:
        message = _BEFORE.sub("", first_line(error))
        fix = next((fix for words, fix in _FIXES if re.search(words, message)), _COMPARE)
        fix = fix.format(bucket=store.bucket, step=step)
        spoken = None if secured else offered(STORE, host, port, _ENCRYPT)
        yield spoken or Finding(STORE, "rights", False, f"cannot {step} in {store.bucket}: {message}", fix)
        return
    yield Finding(STORE, "rights", True, f"may write, list, read and delete in {store.bucket}")
    yield clock(STORE, probe.modified)
    with suppress(psycopg.Error):  # then Postgres is what is wrong
        yield _mark()
    yield _vending(settings)


def _mark() -> Finding:
    """Check whether the bucket is of the same time as Postgres: one of them may have been restored."""
    if (restored := store_mark.compare()) is not None:
        return Finding(STORE, "mark", False, restored.sentence, store_mark.FIX)
    return Finding(STORE, "mark", True, "of the same time as Postgres")


def _vending(settings: Settings) -> Finding:
    """Check whether keys that are limited to one table can be issued."""
    store = settings.object_store
    if store.vending_secret_key is None:
        fix = "Set PULSE_OBJECT_STORE__VENDING_SECRET_KEY where other engines are to read tables"
        return Finding(STORE, "vending", True, "no account vends credentials for engines", fix)
    location = f"s3://{store.bucket}/iceberg/{_FOLDER}"
    try:
        pulse_key = vended.credentials([location], Mode.READ)
        if store.vending_by_tenant:
            vending_accounts.ensure_tenant_accounts(settings, [_FOLDER])
            key = vended.credentials([location], Mode.READ, to_tenant=True)
            vending_accounts.revoke(settings, key)
            vended.drop({key.access_key})
            # The listing is refused if the tenant's request revoked the key.
            list(object_store.listed(location, object_store.file_system_of(pulse_key)))
        elif vending_accounts.is_minio(settings):
            return Finding(STORE, "vending", False, _SHARED, _BY_TENANT)
    except PulseError as error:
        return Finding(STORE, "vending", False, error.message, error.fix or _UP)
    except OSError as error:
        problem = f"a tenant can revoke the keys of others: {_BEFORE.sub('', first_line(error))}"
        return Finding(STORE, "vending", False, problem, _BY_TENANT)
    return Finding(STORE, "vending", True, f"{store.vending_access_key} vends credentials for single tables")
