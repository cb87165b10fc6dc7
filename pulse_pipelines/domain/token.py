"""Tokens of the REST catalog: short-lived credentials made from a key, signed by the service. No I/O.

    pulse-token_<tenant id, 32 hex digits>_<key id, 12 hex digits>_<ends, seconds since 1970>_<signature>

A token grants no more than its key: its check looks the key up, so that revoking the key ends both.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from pulse_pipelines.domain.key import ApiKey

PATTERN = re.compile(r"pulse-token_([0-9a-f]{32})_([0-9a-f]{12})_(\d{1,12})_([0-9a-f]{64})")


@dataclass(frozen=True)
class Token:
    """A token with a valid signature."""

    tenant_id: UUID
    key_id: str
    ends: datetime

    def opens(self, key: ApiKey | None, now: datetime) -> bool:
        """Whether the token has not expired, and its key is in force."""
        return now < self.ends and key is not None and key.in_force(now)


def issue(secret: str, tenant_id: UUID, key_id: str, ends: datetime) -> str:
    """The text of a token that expires at `ends` (whole seconds)."""
    head = f"pulse-token_{tenant_id.hex}_{key_id}_{int(ends.timestamp())}"
    return f"{head}_{_signature(secret, head)}"


def parse(secret: str, text: str) -> Token | None:
    """Parse a token, which may have expired; None if it is malformed, or its signature is wrong."""
    match = PATTERN.fullmatch(text)
    if match is None or not hmac.compare_digest(_signature(secret, text.rpartition("_")[0]), match[4]):
        return None
    return Token(UUID(match[1]), match[2], datetime.fromtimestamp(int(match[3]), UTC))


def _signature(secret: str, head: str) -> str:
    return hmac.new(secret.encode(), head.encode(), hashlib.sha256).hexdigest()
