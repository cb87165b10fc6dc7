"""The key with which this process signs requests to the object store: of the settings, or of the environment.

Where no secret key is set, it is whatever the machine has by AWS's own rules: variables (AWS_ACCESS_KEY_ID),
a profile, a web identity, a container's or an instance's role. Those of a role expire and are renewed here.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pulse_resources.errors import UserError
from pulse_resources.service_settings import ObjectStoreSettings


@dataclass(frozen=True)
class StoreKey:
    """A key; only its public part is ever shown."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(repr=False)


def of(store: ObjectStoreSettings) -> StoreKey:
    """The key as it is now.

    Raises:
        UserError: none is set, and the environment has none.
    """
    if not store.by_role:
        token = store.session_token.get_secret_value() if store.session_token else None
        return StoreKey(store.access_key, store.secret_key.get_secret_value(), token)
    found = _of_environment()
    if found is None:
        raise UserError(
            "no key of the object store is set, and the environment has none",
            fix="Set PULSE_OBJECT_STORE__ACCESS_KEY and PULSE_OBJECT_STORE__SECRET_KEY, or give this machine "
            "a role (or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)",
            store=store.endpoint,
        )
    now = found.get_frozen_credentials()
    return StoreKey(now.access_key, now.secret_key, now.token)


@cache
def _of_environment() -> Any:
    """botocore's credentials, which renew themselves; None: there are none."""
    from botocore.session import Session  # a quarter of a second, for those who have a role

    return Session().get_credentials()


def forget() -> None:
    """Ask the environment anew: it has changed."""
    _of_environment.cache_clear()
