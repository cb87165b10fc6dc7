"""MinIO account that vends credentials, created by MinIO's root during set-up."""

import io
import time
import zipfile
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson

from pulse_resources import store_key, vended
from pulse_resources.errors import Terminal, Transient
from pulse_resources.service_settings import ObjectStoreSettings
from pulse_resources.settings import Settings

POLICY = "pulse-vending"
_PATH = "/minio/admin/v3/import-iam-v2"
_PATIENCE_S = 30.0
"""MinIO answers shortly before it has loaded its accounts."""


def ensure_vending(settings: Settings) -> bool:
    """Create or update the account that vends credentials, with its policy; idempotent.

    Returns:
        Whether it was created here: on an object store other than MinIO the operator creates accounts.

    Raises:
        Transient, Terminal: MinIO refused.
    """
    store = settings.object_store
    if store.vending_secret_key is None:
        return False
    name = store.vending_access_key
    documents: Mapping[str, Any] = {
        "policies": {POLICY: vended.account_policy(store.bucket)},
        "users": {name: {"secretKey": store.vending_secret_key.get_secret_value(), "status": "enabled"}},
        "user_mappings": {name: {"version": 1, "policy": POLICY, "updatedAt": "0001-01-01T00:00:00Z"}},
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for title, document in documents.items():
            archive.writestr(f"iam-assets/{title}.json", orjson.dumps(document))
    answer = _put(store, packed.getvalue())
    if answer is None:
        return False
    if any((answer.get("failed") or {}).values()):
        raise Terminal("MinIO did not make the account that vends credentials", account=name)
    return True


def _put(store: ObjectStoreSettings, body: bytes) -> dict[str, Any] | None:
    """MinIO's response to a request as root; None if the store does not know the request."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
    from botocore.exceptions import BotoCoreError
    from botocore.httpsession import URLLib3Session

    key = store_key.of(store)
    root = Credentials(key.access_key, key.secret_key, key.session_token)
    session = URLLib3Session(verify=str(store.ca_file) if store.ca_file else True, timeout=10)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        request = AWSRequest(
            "PUT", store.endpoint.rstrip("/") + _PATH, {"Host": urlsplit(store.endpoint).netloc}, body
        )
        S3SigV4Auth(root, "s3", store.region).add_auth(request)
        try:
            answer = session.send(request.prepare())
        except BotoCoreError as error:
            raise Transient("MinIO does not answer", store=store.endpoint, error=error) from None
        if answer.status_code == 200:
            found: dict[str, Any] = orjson.loads(answer.content)
            return found
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
