"""Postgres: its address, version and clock, the roles with their rights, the migrations, its connections."""

from collections.abc import Iterator
from typing import get_args

import psycopg

from pulse_pipelines.monitoring.doctor.finding import PATIENCE_S, Finding, clock, first_line, reached
from pulse_resources.postgres import missing_migrations
from pulse_resources.service_settings import Role
from pulse_resources.settings import Settings

POSTGRES = "postgres"
OLDEST = 14
"""Since when there are the multiranges that the ledger keeps."""
CONNECTIONS = 20
"""That the API, the daemon and a run may open at a time."""
RIGHTS = """
SELECT rolname FROM pg_roles WHERE rolname = ANY(%s) AND (rolsuper OR rolbypassrls) ORDER BY rolname
"""
ROOM = """
SELECT current_setting('max_connections')::int, (SELECT count(*) FROM pg_stat_activity)::int,
    clock_timestamp()
"""
_UP = (
    "Start it (`pulse up` starts the embedded one), or correct PULSE_POSTGRES__HOST and PULSE_POSTGRES__PORT"
)


def look(settings: Settings) -> Iterator[Finding]:
    """Everything but the address is seen through connections of the roles themselves."""
    at = reached(POSTGRES, settings.postgres.host, settings.postgres.port, _UP)
    yield at
    if not at.ok:
        return
    refused: dict[str, str] = {}
    for role in get_args(Role):
        try:
            psycopg.connect(settings.postgres.url(role), connect_timeout=int(PATIENCE_S)).close()
        except psycopg.OperationalError as error:
            refused[role] = first_line(error)
    said = "; ".join(f"{role}: {why}" for role, why in refused.items())
    fix = (
        "Let `pulse up` create roles and database with PULSE_POSTGRES__SUPERUSER and its password, or set "
        "PULSE_POSTGRES__ROLE_PASSWORDS to what they are"
    )
    yield Finding(POSTGRES, "roles", not refused, said or "all four sign in", fix)
    if "pulse_owner" in refused:
        return
    with psycopg.connect(settings.postgres.url("pulse_owner"), connect_timeout=int(PATIENCE_S)) as connection:
        yield from _inside(connection)


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
    found = f"{len(missing)} are missing, the first is {missing[0]}" if missing else "all are applied"
    yield Finding(POSTGRES, "migrations", not missing, found, "Apply them: `pulse up` does")
    most, used, now = connection.execute(ROOM).fetchone() or (0, 0, None)
    fix = f"Raise max_connections, or close some: Pulse opens up to {CONNECTIONS}"
    yield Finding(POSTGRES, "connections", most - used >= CONNECTIONS, f"{used} of {most} are open", fix)
    if now is not None:
        yield clock(POSTGRES, now)
