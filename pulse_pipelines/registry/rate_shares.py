"""Rate shares: the running API processes, and the recent demand for each tenant's rates in each of them.

All times are by Postgres' clock, so that clocks of machines need not agree.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from pulse_resources import postgres

BEAT = """
INSERT INTO api_processes (process) VALUES (%s) ON CONFLICT (process) DO UPDATE SET seen_at = now()
"""
ALIVE = "SELECT count(*) FROM api_processes WHERE seen_at > now() - make_interval(secs => %s)"
FORGET = "DELETE FROM api_processes WHERE seen_at < now() - interval '1 minute'"
LEAVE = "DELETE FROM api_processes WHERE process = %s"
RECORD_DEMAND = """
INSERT INTO rate_shares (tenant_id, kind, process, asked)
VALUES (%(tenant)s, %(kind)s, %(process)s, %(asked)s)
ON CONFLICT (tenant_id, kind, process) DO UPDATE SET asked = EXCLUDED.asked, seen_at = now()
"""
OTHERS = """
SELECT asked FROM rate_shares
WHERE kind = %(kind)s AND process <> %(process)s AND seen_at > now() - make_interval(secs => %(lifetime)s)
"""


def beat(process: UUID, lifetime: float) -> int:
    """Record that a process is alive; returns how many were within `lifetime` seconds, itself included."""
    with postgres.transaction("pulse_api") as connection:
        connection.execute(FORGET)
        connection.execute(BEAT, [process])
        ((count,),) = connection.execute(ALIVE, [lifetime]).fetchall()
        return int(count)


def leave(process: UUID) -> None:
    """Remove a process, so that the others get its shares at once."""
    with postgres.transaction("pulse_api") as connection:
        connection.execute(LEAVE, [process])


def exchange(
    process: UUID, tenant_id: UUID, demand: Mapping[str, float], lifetime: float
) -> Mapping[str, Sequence[float]]:
    """Record a process's demand for a tenant's rates, per second; returns the demands on the others, by kind.

        Args:
            process: one recorded by `beat`.
    demand: demand by kind of rate.
            lifetime: seconds after which a recorded demand expires.
    """
    common = {"tenant": tenant_id, "process": process, "lifetime": lifetime}
    shares = {}
    with postgres.tenant_transaction("pulse_api", tenant_id) as connection:
        for kind, per_second in demand.items():
            values = common | {"kind": kind, "asked": per_second}
            connection.execute(RECORD_DEMAND, values)
            shares[kind] = [other_demand for (other_demand,) in connection.execute(OTHERS, values)]
    return shares
