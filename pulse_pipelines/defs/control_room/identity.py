"""Identity of a caller: by a token, by a session started with one, or by a trusted proxy's header."""

import hashlib
import hmac
import time
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import Scope

from pulse_resources.settings.api_settings import DagsterSettings


class Role(StrEnum):
    """Permission of a caller: read only, or also change."""

    OPERATOR = "operator"
    READ_ONLY = "read-only"


class Identity:
    """Determines the role of a request. Stateless: a session is a signed cookie, ended by a new token."""

    def __init__(self, settings: DagsterSettings) -> None:
        self._settings = settings
        tokens = {Role.OPERATOR: settings.token, Role.READ_ONLY: settings.read_only_token}
        self._tokens = {role: token.get_secret_value() for role, token in tokens.items() if token}
        # Cookies ignore ports: stacks on one machine would overwrite each other's.
        self.cookie = f"pulse_control_room_{settings.webserver_port}"

    def is_configured(self) -> bool:
        """Whether any way to sign in is configured."""
        return bool(self._tokens or (self._settings.proxy_header and self._settings.proxy_addresses))

    def of(self, scope: Scope, headers: Headers) -> Role | None:
        """Role of a request; None: not authenticated."""
        kind, _, presented = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.of_token(presented.strip())
        session = cookie_parser(headers.get("cookie", "")).get(self.cookie)
        return (self._of_session(session) if session else None) or self._of_proxy(scope, headers)

    def of_token(self, presented: str) -> Role | None:
        """Role of a token; compared in constant time."""
        matching = None
        for role, token in self._tokens.items():
            if hmac.compare_digest(_digest(presented), _digest(token)):
                matching = matching or role
        return matching

    def session(self, role: Role) -> str:
        """Cookie value that grants the role for `session_hours`."""
        ends = int(time.time() + self._settings.session_hours * 3_600)
        return f"{role}.{ends}.{self._signature(role, str(ends))}"

    def _of_session(self, value: str) -> Role | None:
        name, _, remainder = value.partition(".")
        ends, _, signature = remainder.partition(".")
        role = next((role for role in self._tokens if role == name), None)
        if role is None or not hmac.compare_digest(_digest(self._signature(role, ends)), _digest(signature)):
            return None
        return role if int(ends) > time.time() else None

    def _signature(self, role: Role, ends: str) -> str:
        signed = f"session {role} {ends}"
        return hmac.new(self._tokens[role].encode(), signed.encode(), hashlib.sha256).hexdigest()

    def _of_proxy(self, scope: Scope, headers: Headers) -> Role | None:
        name = self._settings.proxy_header
        users = headers.getlist(name) if name else []
        if len(users) != 1 or not users[0] or not self._trusted(scope):
            return None
        operators = self._settings.proxy_operators
        return Role.OPERATOR if users[0] in operators or "*" in operators else Role.READ_ONLY

    def _trusted(self, scope: Mapping[str, object]) -> bool:
        client = scope.get("client")
        if not isinstance(client, tuple | list):
            return False
        try:
            address = ip_address(client[0])
        except ValueError:
            return False
        return any(address in network for network in self._settings.proxy_addresses)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()
