"""Run tags by which the Runs page is filtered by tenant.

A tag has one value and a batch many tenants: so each tenant is a key of its own, `pulse.tenant/<slug>`, on
every run that touches it. `pulse/tenant` is only on runs that are one tenant's work, for concurrency limits
to count them: batches never wait for those.
"""

from collections.abc import Collection

NAMED = 20
"""Tenants of a run that are tags: each is a row in Dagster's database. A run of more says how many."""


def tenant_tags(slugs: Collection[str]) -> dict[str, str]:
    """The tags of a run that touches these tenants; filter by `pulse.tenant/<slug>=yes`."""
    if len(slugs) > NAMED:
        return {"pulse/tenants": str(len(slugs))}
    return {f"pulse.tenant/{slug}": "yes" for slug in sorted(slugs)}
