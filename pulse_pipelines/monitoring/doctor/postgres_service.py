"""Postgres: address, version, clock, roles and their rights, migrations, and connections."""

import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

import psycopg

from pulse_pipelines.monitoring.doctor.finding import PATIENCE_S, Finding, clock, reached
from pulse_pipelines.monitoring.doctor.transport import Proof, Tls, offered
from pulse_resources.errors import first_line
from pulse_resources.postgres import missing_migrations
from pulse_resources.settings import Settings
from pulse_resources.settings.service_settings import PostgresSettings, Role

POSTGRES = "postgres"
OLDEST = 14
"""First version with multiranges, which the ledger uses."""
CONNECTIONS = 20
"""Connections that the API, the daemon and a run may open concurrently."""
RIGHTS = """
SELECT rolname FROM pg_roles WHERE rolname = ANY(%s) AND (rolsuper OR rolbypassrls) ORDER BY rolname
"""
ABLE = """
SELECT rolsuper OR rolcreaterole AND rolcreatedb FROM pg_roles WHERE rolname = current_user
"""
ROOM = """
SELECT current_setting('max_connections')::int, (SELECT count(*) FROM pg_stat_activity)::int,
    clock_timestamp()
"""
EXISTING_ROLES = "SELECT rolname FROM pg_roles WHERE rolname = ANY(%s)"
_BEFORE = re.compile(
    r"^connection failed: |connection to server at .*?, port \d+ failed: |FATAL:\s+|fe_sendauth: "
)
_ABSENT = "does not exist"
_MAKE = "Let `pulse up` make the roles, with PULSE_POSTGRES__SUPERUSER and its password"
_FIXES = (
    # The remedy, by the error of the server for a role.
    (f"^{_ABSENT}$", _MAKE),
    ("database .* does not exist", "Let `pulse up` create it, or correct PULSE_POSTGRES__DATABASE"),
    (
        "certificate|unknown ca|alert",
        "Set PULSE_POSTGRES__SSLCERT and PULSE_POSTGRES__SSLKEY to a certificate that an authority of the "
        "server signed, and its key",
    ),
    (
        "no password supplied|password authentication failed",
        "Set PULSE_POSTGRES__ROLE_PASSWORDS to the passwords that they have; or, where no other installation "
        "uses them, let `pulse up` make them or set new ones: it needs PULSE_POSTGRES__SUPERUSER_PASSWORD",
    ),
    ("not permitted to log in", "ALTER ROLE … LOGIN"),
    ("pg_hba.conf", "Admit Pulse's roles from this machine in the server's pg_hba.conf"),
)
_UP = (
    "Start it (`pulse up` starts the embedded one), or correct PULSE_POSTGRES__HOST and PULSE_POSTGRES__PORT"
)
_ENCRYPT = (
    "Set PULSE_POSTGRES__SSLROOTCERT to the authority of the server's certificate, and leave SSLMODE unset"
)
_SSL_REQUEST = (8).to_bytes(4) + (80_877_103).to_bytes(4)
"""A client's request for TLS in Postgres's protocol; the answer is one letter."""
_PROOFS: dict[str, Proof] = {"verify-full": "name", "verify-ca": "authority", "require": "none"}


def check_postgres(settings: Settings) -> Iterator[Finding]:
    """Check Postgres; everything except address and TLS over connections of the roles themselves."""
    host, port = settings.postgres.host, settings.postgres.port
    at = reached(POSTGRES, host, port, _UP)
    if not at.ok:
        yield at
        return
    if not _speaks_postgres(host, port):
        problem = f"{host}:{port} takes connections, but does not answer as Postgres does"
        yield Finding(
            POSTGRES, "address", False, problem, "Correct PULSE_POSTGRES__HOST and PULSE_POSTGRES__PORT"
        )
        return
    yield at
    tls = _tls(settings.postgres)
    if tls:
        tls_findings = tls.check(host, port)
        yield from tls_findings
        if not tls_findings[0].ok:
            return
    refused: dict[str, str] = {}
    for role in get_args(Role):
        if why := _refusal(settings.postgres.url(role)):
            refused[role] = why.replace(f'user "{role}"', "the user")
    if refused and settings.postgres.sslmode == "disable":
        finding = offered(POSTGRES, host, port, _ENCRYPT, _asks_for_tls)
        if finding:
            yield finding
            return
    yield _roles(settings.postgres, refused)
    yield from _superuser(settings.postgres, refused)
    if "pulse_owner" in refused:
        return
    why = _refusal(settings.postgres.dagster_url())
    fix = "Create it with `pulse up`, or correct PULSE_POSTGRES__DAGSTER_DATABASE"
    yield Finding(POSTGRES, "dagster database", not why, why or settings.postgres.dagster_database, fix)
    with psycopg.connect(settings.postgres.url("pulse_owner"), connect_timeout=int(PATIENCE_S)) as connection:
        yield from _inside(connection)


def _refusal(url: str) -> str | None:
    """Why a connection is refused, without what libpq says before; None if it is not."""
    try:
        psycopg.connect(url, connect_timeout=int(PATIENCE_S)).close()
    except psycopg.OperationalError as error:
        return _BEFORE.sub("", first_line(error))
    return None


def _roles(postgres: PostgresSettings, refused: Mapping[str, str]) -> Finding:
    """Whether all roles can sign in; a password that is refused may be that of a role which is not there."""
    if not refused:
        return Finding(POSTGRES, "roles", True, "all of them sign in")
    existing, of_reason = _existing_roles(postgres), dict[str, list[str]]()
    for role, why in refused.items():
        absent = existing is not None and role not in existing
        of_reason.setdefault(_ABSENT if absent else why, []).append(role)
    problem = "; ".join(f"{', '.join(roles)}: {why}" for why, roles in of_reason.items())
    fixes = (next((fix for words, fix in _FIXES if re.search(words, why)), _MAKE) for why in of_reason)
    return Finding(POSTGRES, "roles", False, problem, ". ".join(dict.fromkeys(fixes)))


def _existing_roles(postgres: PostgresSettings) -> set[str] | None:
    """Pulse's roles that the server has; None if the superuser cannot sign in to tell."""
    try:
        with psycopg.connect(postgres.superuser_url(), connect_timeout=int(PATIENCE_S)) as connection:
            return {name for (name,) in connection.execute(EXISTING_ROLES, [list(get_args(Role))])}
    except psycopg.OperationalError:
        return None


def _superuser(postgres: PostgresSettings, refused: Mapping[str, str]) -> Iterator[Finding]:
    """Check whether `pulse up` can create roles and databases; without its password this is optional.

    Args:
        refused: roles that cannot sign in, each with the reason.
    """
    user, check = postgres.superuser, "superuser"
    fix = (
        "Set PULSE_POSTGRES__SUPERUSER and PULSE_POSTGRES__SUPERUSER_PASSWORD to an account that may create "
        "roles and databases: `pulse up` uses it"
    )
    try:
        with psycopg.connect(postgres.superuser_url(), connect_timeout=int(PATIENCE_S)) as connection:
            able = connection.execute(ABLE).fetchone() == (True,)
    except psycopg.OperationalError as error:
        why = _BEFORE.sub("", first_line(error))
        if refused and "password" not in why:  # as for the roles: a certificate, for example
            return
        if postgres.superuser_password.get_secret_value() or refused:
            yield Finding(POSTGRES, check, False, f"{user} cannot sign in: {why}", fix)
        else:
            yield Finding(POSTGRES, check, True, "its password is not set here: only `pulse up` needs it")
        return
    rights = f"{user} {'may' if able else 'may not'} create roles and databases"
    yield Finding(POSTGRES, check, able, rights, fix)


def _tls(postgres: PostgresSettings) -> Tls | None:
    """The expected TLS configuration; None if the settings do not ask for TLS."""
    mode, authorities = postgres.tls.get("sslmode", "prefer"), postgres.sslrootcert
    proof = _PROOFS.get(mode)
    if proof is None:
        return None
    if proof == "none" and authorities:
        proof = "authority"  # as libpq does
    return Tls(
        POSTGRES,
        proof,
        authorities if isinstance(authorities, Path) else None,
        "PULSE_POSTGRES__SSLROOTCERT",
        "PULSE_POSTGRES__HOST",
        "Let the server speak TLS (ssl = on), or clients speak plain text: PULSE_POSTGRES__SSLMODE=disable",
        postgres.sslcert,
        postgres.sslkey,
        certificate_settings="PULSE_POSTGRES__SSLCERT and PULSE_POSTGRES__SSLKEY",
        starts=_asks_for_tls,
    )


def _asks_for_tls(plain: socket.socket) -> bool:
    plain.sendall(_SSL_REQUEST)
    return plain.recv(1) == b"S"


def _speaks_postgres(host: str, port: int) -> bool:
    """Whether a request for TLS is answered as Postgres does: yes or no, in one letter."""
    try:
        with socket.create_connection((host, port), PATIENCE_S) as plain:
            plain.sendall(_SSL_REQUEST)
            return plain.recv(1) in (b"S", b"N")
    except OSError:
        return False


def _inside(connection: psycopg.Connection) -> Iterator[Finding]:
    version = connection.info.server_version
    fix = f"Use Postgres {OLDEST} or later"
    yield Finding(POSTGRES, "version", version >= OLDEST * 10_000, f"{version // 10_000}", fix)
    above = [name for (name,) in connection.execute(RIGHTS, [list(get_args(Role))])]
    fix = f"ALTER ROLE {', '.join(above)} NOSUPERUSER NOBYPASSRLS: they pass by row-level security"
    yield Finding(
        POSTGRES, "rights", not above, ", ".join(above) or "no role passes by row-level security", fix
    )
    missing = missing_migrations(connection)
    result = f"{len(missing)} are missing, the first is {missing[0]}" if missing else "all are applied"
    yield Finding(POSTGRES, "migrations", not missing, result, "Apply them: `pulse up` does")
    most, used, now = connection.execute(ROOM).fetchone() or (0, 0, None)
    fix = f"Raise max_connections, or close some: Pulse opens up to {CONNECTIONS}"
    yield Finding(POSTGRES, "connections", most - used >= CONNECTIONS, f"{used} of {most} are open", fix)
    if now is not None:
        yield clock(POSTGRES, now)
