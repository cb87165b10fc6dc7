"""Object store: address, permissions on the bucket, and clock."""

from collections.abc import Iterator
from urllib.parse import urlsplit
from uuid import uuid4

from pulse_pipelines.monitoring.doctor.finding import Finding, clock, reached
from pulse_pipelines.monitoring.doctor.transport import Tls, offered
from pulse_resources import object_store, store_key, vended
from pulse_resources.errors import PulseError, UserError, first_line
from pulse_resources.settings import Settings
from pulse_resources.vended import Mode

STORE = "object store"
_UP = "Start it (`pulse up` starts the embedded one), or correct PULSE_OBJECT_STORE__ENDPOINT"

_ENCRYPT = (
    "Write https:// in PULSE_OBJECT_STORE__ENDPOINT, and set PULSE_OBJECT_STORE__CA_FILE to the authority of "
    "its certificate"
)


def look(settings: Settings) -> Iterator[Finding]:
    """Write, list, read and remove an object: all operations that Pulse uses on a bucket."""
    store = settings.object_store
    endpoint = urlsplit(store.endpoint)
    if endpoint.scheme not in ("http", "https") or not endpoint.hostname:
        yield Finding(
            STORE, "address", False, f"{store.endpoint} is not an address", "Write it as https://host:port"
        )
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
        seen = Tls(STORE, "name", store.ca_file, *settings_of, fix).look(host, port)
        yield from seen
        if not seen[0].ok:
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
        fix = (
            f"Create the bucket {store.bucket}, let PULSE_OBJECT_STORE__ACCESS_KEY {step} objects in it, and "
            "compare PULSE_OBJECT_STORE__SECRET_KEY, PULSE_OBJECT_STORE__REGION and, of temporary "
            "credentials, PULSE_OBJECT_STORE__SESSION_TOKEN"
        )
        spoken = None if secured else offered(STORE, host, port, _ENCRYPT)
        yield spoken or Finding(
            STORE, "rights", False, f"cannot {step} in {store.bucket}: {first_line(error)}", fix
        )
        return
    yield Finding(STORE, "rights", True, f"may write, list, read and delete in {store.bucket}")
    yield clock(STORE, probe.modified)
    yield _vending(settings)


def _vending(settings: Settings) -> Finding:
    """Check whether keys that are limited to one table can be issued."""
    store = settings.object_store
    if store.vending_secret_key is None:
        fix = "Set PULSE_OBJECT_STORE__VENDING_SECRET_KEY where other engines are to read tables"
        return Finding(STORE, "vending", True, "no account vends credentials for engines", fix)
    try:
        vended.credentials([f"s3://{store.bucket}/iceberg/doctor"], Mode.READ)
    except PulseError as error:
        return Finding(STORE, "vending", False, error.message, error.fix or _UP)
    return Finding(STORE, "vending", True, f"{store.vending_access_key} vends credentials for single tables")
