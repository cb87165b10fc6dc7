"""Waiting until events of `pulse collect` are settled, and their outcomes."""

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pulse_api.cli.output import counted, working
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.monitoring import trace
from pulse_pipelines.monitoring.trace import sent, topic
from pulse_resources.errors import NotFound, Transient

POLL_S = 1.0
MAX_TRACED = 20
"""Maximum events whose outcome is printed; further ones are only counted."""


class Sent:
    """Accepted event ids, by the dataset that their events name."""

    def __init__(self) -> None:
        self._ids: dict[str | None, set[str]] = {}
        self.unnamed = 0
        """Number of events whose id cannot be read."""

    def add(self, payload: bytes) -> None:
        """Record an event."""
        event_id, dataset = topic.names(payload)
        if event_id is None:
            self.unnamed += 1
        else:
            self._ids.setdefault(dataset, set()).add(event_id)

    def fates(self, tenant: Tenant) -> dict[str, Any]:
        """How many ids landed, how many did not, and the outcomes of the first of these."""
        missing = [(slug, id_) for slug, ids in sent.not_landed(tenant, self._ids).items() for id_ in ids]
        count = sum(map(len, self._ids.values()))
        shown = [_fate(tenant, slug, event_id) for slug, event_id in missing[:MAX_TRACED]]
        return {"landed": count - len(missing), "not_landed": len(missing) + self.unnamed, "fates": shown}


def _fate(tenant: Tenant, slug: str | None, event_id: str) -> Mapping[str, str | None]:
    try:
        fate = trace.by_id(tenant, event_id, dataset=slug).fates[0]
    except NotFound as error:
        return {"event_id": event_id, "dataset": slug, "state": None, "detail": error.message}
    return {"event_id": event_id, "dataset": slug, "state": fate.state, "detail": fate.detail}


def until_settled(tenant: Tenant, at_most: timedelta, count: int) -> None:
    """Wait until all that the tenant's topic holds now is settled, showing how much is not.

    Args:
        count: events that were sent; the topic may hold others' before and between them.

    Raises:
        Transient: it took longer.
    """
    ends, until = sent.marks(tenant), time.monotonic() + at_most.total_seconds()
    with working("waiting until the events that were sent have settled") as begins:
        while unsettled := sent.unsettled(tenant, ends):
            waiting = f"{counted(unsettled, 'event')} of the tenant's topic, by any sender,"
            waiting += " is not settled" if unsettled == 1 else " are not settled"
            begins(waiting)
            if time.monotonic() > until:
                raise Transient(
                    f"{waiting} yet (sent now: {count:,})",
                    fix=f"They are safe. See `pulse batch list`, `pulse trace {tenant.slug} <event id>`",
                    tenant=tenant.slug,
                )
            time.sleep(POLL_S)
