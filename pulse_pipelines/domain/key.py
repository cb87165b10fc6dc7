"""API keys: their text form, and the check of a presented key against the stored hash. No I/O.

    pulse_<tenant id, 32 hex digits>_<key id, 12 hex digits>_<secret, 43 characters>
    pulse_operator_<key id>_<secret>

The prefix lets scanners recognise a leaked key. The tenant in it only selects the session in which to look
the key up: without the secret it grants nothing. Only the SHA-256 of the secret is stored, which suffices for
256 random bits.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol
from uuid import UUID

PATTERN = re.compile(r"pulse_([0-9a-f]{32}|operator)_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")

NO_HASH = bytes(hashlib.sha256().digest_size)


class KeyScope(StrEnum):
    """Permissions of a tenant's key."""

    COLLECT = "collect"
    """Send events."""
    READ = "read"
    """See schemas, datasets, rows, usage and dead letters."""
    MANAGE = "manage"
    """Publish schemas, create, change and delete datasets, replay dead letters, manage keys."""
    LAKE_READ = "lake:read"
    """Read tables, with an engine of one's own: through the REST catalog, and by SQL."""
    LAKE_WRITE = "lake:write"
    """Make and change tables in namespaces of the tenant's own, through the REST catalog."""


@dataclass(frozen=True)
class ApiKey:
    """A stored key: metadata and the hash of the secret."""

    key_id: str
    name: str
    scopes: frozenset[KeyScope]
    """Empty for an operator's key."""
    key_hash: bytes
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    issued_by: str | None
    """Id of the key of the tenant that issued it; None: an operator did."""

    def in_force(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True)
class IssuedKey:
    """A new key: `text` is shown once and stored nowhere."""

    text: str
    stored: ApiKey


class Credential(Protocol):
    """A presented credential: a key, or a token made from one."""

    @property
    def tenant_id(self) -> UUID | None:
        """None for an operator's."""

    @property
    def key_id(self) -> str: ...

    def opens(self, key: ApiKey | None, now: datetime) -> bool:
        """Whether the credential belongs to this key, and the key is in force.

        Takes the same time for an existing key as for a missing one.
        """
        ...


@dataclass(frozen=True)
class Presented:
    """A key as a caller presents it."""

    tenant_id: UUID | None
    """None for an operator's key."""
    key_id: str
    secret: str

    @classmethod
    def parse(cls, text: str) -> "Presented | None":
        """Parse the text of a key; None if it is malformed."""
        match = PATTERN.fullmatch(text)
        if match is None:
            return None
        return cls(None if match[1] == "operator" else UUID(match[1]), match[2], match[3])

    def opens(self, key: ApiKey | None, now: datetime) -> bool:
        """Whether the secret is that of this key, and the key is in force."""
        same = hmac.compare_digest(hash_of(self.secret), key.key_hash if key else NO_HASH)
        return same and key is not None and key.in_force(now)


def new_secret() -> tuple[str, str]:
    """A fresh key id and secret."""
    return secrets.token_hex(6), secrets.token_urlsafe(32)


def written(tenant_id: UUID | None, key_id: str, secret: str) -> str:
    """The text of a key, as its owner gets it."""
    return f"pulse_{tenant_id.hex if tenant_id else 'operator'}_{key_id}_{secret}"


def hash_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
