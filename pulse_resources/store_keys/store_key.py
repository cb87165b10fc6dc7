"""The process's key for signing requests to the object store, from the settings or the environment.

Without a secret key in the settings AWS's own lookup applies: variables (AWS_ACCESS_KEY_ID), a profile, a web
identity, the role of a container or instance. A role's keys expire and are renewed here.
"""

from dataclasses import dataclass, field
from typing import Any

from pulse_resources.errors import UserError
from pulse_resources.resettable import Resettable
from pulse_resources.settings.service_settings import ObjectStoreSettings


@dataclass(frozen=True)
class StoreKey:
    """A key; only its public part is ever shown."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(repr=False)


def of(store: ObjectStoreSettings) -> StoreKey:
    """The key at this moment.

    Raises:
        UserError: there is none, neither in the settings nor in the environment.
    """
    if not store.by_role:
        token = store.session_token.get_secret_value() if store.session_token else None
        return StoreKey(store.access_key, store.secret_key.get_secret_value(), token)
    key_pair = _of_environment()
    if key_pair is None:
        raise UserError(
            "no key of the object store is set, and the environment has none",
            fix="Set PULSE_OBJECT_STORE__ACCESS_KEY and PULSE_OBJECT_STORE__SECRET_KEY, or give this machine "
            "a role (or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)",
            store=store.endpoint,
        )
    now = key_pair.get_frozen_credentials()
    return StoreKey(now.access_key, now.secret_key, now.token)


@Resettable
def _of_environment() -> Any:
    """botocore's self-renewing credentials; None: the environment has none."""
    from botocore.session import Session  # takes a quarter of a second; only processes with a role need it

    return Session().get_credentials()


def forget() -> None:
    """Read the environment again, after a change."""
    _of_environment.cache_clear()
