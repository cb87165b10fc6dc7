"""Counts of the entities of the last day's runs, by outcome."""

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres

LAST_DAY = """
SELECT tenant_id, pipe, sum(created)::bigint, sum(changed)::bigint, sum(unchanged)::bigint,
    sum(deleted)::bigint, sum(refused)::bigint
FROM entity_syncs WHERE pipe IS NOT NULL AND begun_at > now() - interval '24 hours' GROUP BY 1, 2
UNION ALL
SELECT tenant_id, pipe, 0, sum(upserted)::bigint, 0, sum(deleted)::bigint, sum(refused)::bigint
FROM pipe_deliveries WHERE begun_at > now() - interval '24 hours' GROUP BY 1, 2
"""


class LastDay(NamedTuple):
    """Entities of the runs of the last 24 hours, by outcome; those written to a sink count as changed."""

    created: int = 0
    changed: int = 0
    unchanged: int = 0
    deleted: int = 0
    refused: int = 0


def last_day(tenant: Tenant | None = None) -> Mapping[tuple[UUID, str], LastDay]:
    """Count the entities of the runs of the last 24 hours, by tenant and pipe; a pipe without runs is absent.

    Args:
        tenant: None: all.
    """
    if tenant is None:
        with postgres.transaction("pulse_pipeline") as connection:
            rows = connection.execute(LAST_DAY).fetchall()
    else:
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
            rows = connection.execute(LAST_DAY).fetchall()
    return {(tenant_id, name): LastDay(*counts) for tenant_id, name, *counts in rows}
