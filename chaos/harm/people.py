"""Tenants of an attack: their keys, and what becomes of the neighbour's events."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from chaos import batches
from chaos.harm.attack import Target
from chaos.harm.neighbour import COLLECT, DATASET, Place, Record
from chaos.traffic import SETTLED
from chaos.waiting import wait
from pulse_pipelines import registry
from pulse_pipelines.defs.control_room.identity import Identity, Role
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.query import duckdb_pool
from pulse_pipelines.registry import keys
from pulse_resources import kafka, postgres
from pulse_resources.settings import Settings, load_settings

PATIENCE_S = 900.0
FRESHNESS = """
SELECT coalesce(max(extract(epoch FROM settled_at - oldest_received)), 0)::float8 FROM ingest_ranges
WHERE tenant_id = %s AND oldest_received BETWEEN to_timestamp(%s) AND to_timestamp(%s)
"""


def make_neighbour() -> tuple[Tenant, Place]:
    """Make the neighbour, a new honest tenant."""
    tenant = batches.make_tenant(with_states=False)
    key = keys.issue_key(tenant, "neighbour", [KeyScope.COLLECT, KeyScope.READ]).text
    return tenant, Place(load_settings().api.port, key)


def make_attacker(*, room: bool) -> tuple[Tenant, Target]:
    """Make an attacker, a new tenant with a key of each scope.

    Args:
        room: whether the control room runs.
    """
    settings, tenant = load_settings(), batches.make_tenant(with_states=False)
    target = Target(
        tenant=tenant.slug,
        keys={scope: keys.issue_key(tenant, scope, [scope]).text for scope in KeyScope},
        api=settings.api.port,
        kafka=settings.kafka.bootstrap_servers,
        spark=settings.spark.place,
        **(_room(settings) if room else {}),
    )
    return tenant, target


def _room(settings: Settings) -> dict[str, Any]:
    room = settings.dagster
    identity = Identity(room)
    assert room.token, "`pulse up` makes one"
    return {
        "room": room.webserver_port,
        "session": f"{identity.cookie}={identity.session(Role.OPERATOR)}",
        "token": room.token.get_secret_value(),
    }


def settled(tenants: Sequence[Tenant]) -> None:
    """Wait until all events in these tenants' topics are settled.

    Raises:
        AssertionError: it takes too long.
    """
    counts = kafka.partition_counts()
    where = [(t.topic, partition) for t in tenants for partition in range(counts[t.topic])]
    ends = kafka.offsets(where, "latest")
    of = {tenant.topic: tenant.tenant_id for tenant in tenants}

    def reached() -> bool:
        with postgres.transaction("pulse_pipeline") as connection:
            offsets = {(tenant, at): offset for tenant, at, offset in connection.execute(SETTLED)}
        return all(offsets.get((of[topic], at), 0) >= end for (topic, at), end in ends.items())

    wait(reached, "not everything is settled", PATIENCE_S)


def waited_s(tenant: Tenant, began: float, ended: float) -> float:
    """Longest time from received to settled, of batches whose oldest event arrived in this period (Unix)."""
    with postgres.transaction("pulse_pipeline") as connection:
        (longest,) = connection.execute(FRESHNESS, [tenant.tenant_id, began, ended]).fetchone() or (0.0,)
    return float(longest)


def not_once(tenant: Tenant, records: Iterable[Record]) -> list[str]:
    """Accepted events that are not exactly one row each, with what became of them.

    Args:
        tenant: owner of the events, all of which are settled.
        records: all requests ever sent; an event without a good response may have landed or not.
    """
    location = registry.current_table(tenant, DATASET).metadata_location
    with duckdb_pool.connect() as connection:
        rows = connection.execute(f"SELECT id FROM {duckdb_pool.SCAN}", [location]).fetchall()
    times = Counter(event_id for (event_id,) in rows)
    sent = [record for record in records if record.kind == COLLECT]
    accepted = {event_id for record in sent if record.well for event_id in record.ids}
    doubtful = {event_id for record in sent if not record.well for event_id in record.ids}
    wrong = {
        "accepted events are lost": len(accepted - times.keys()),
        "events landed more than once": sum(count > 1 for count in times.values()),
        "events landed that no one sent": len(times.keys() - accepted - doubtful),
    }
    return [f"{count:,} {problem}" for problem, count in wrong.items() if count]
