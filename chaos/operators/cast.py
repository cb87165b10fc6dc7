"""Tenants of an episode, all new: two ordinary ones, a hostile one, and one with a quota."""

import uuid

from chaos.operators import events
from chaos.operators.commands import uri
from chaos.operators.rounds import Rounds
from chaos.operators.schedule import HOSTILE, METERED, TENANTS
from chaos.operators.world import World
from pulse_pipelines import registry
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.registry import keys, quotas

RECORDS = 60
"""Initial quota of the tenant that has one."""


def make_worlds() -> list[World]:
    """Tenants by their numbers in a schedule."""
    return [tenant(number) for number in range(TENANTS)]


def tenant(number: int) -> World:
    """One of them."""
    tenant = registry.create_tenant(f"o{uuid.uuid4().hex[:10]}")
    for document in events.DOCUMENTS:
        registry.publish_schema(tenant, events.NAME, document)
    for slug in events.SLUGS[:-1]:
        registry.create_dataset(tenant, slug, uri(tenant, 1))
    world = World(tenant, Rounds(tenant), hostile=number == HOSTILE)
    if number == METERED:
        world.key = keys.issue_key(tenant, "chaos", [KeyScope.COLLECT]).text
        world.quotas.append(RECORDS)
        quotas.set_limits(tenant, max_records_per_month=RECORDS)
    world.record_round()
    return world
