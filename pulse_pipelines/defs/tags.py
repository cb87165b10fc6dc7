"""Run tags by which the Runs page is filtered by tenant.

A tag has one value and a batch many tenants: so each tenant is a key of its own, `pulse.tenant/<slug>`, on
every run that touches it. `pulse/tenant` is only on runs that are one tenant's work, for concurrency limits
to count them: batches never wait for those.
"""

from collections.abc import Collection

NAMED = 3
"""Tenants of a run that are tags: all tags of a run shall be one line in the UI."""


def tenant_tags(slugs: Collection[str]) -> dict[str, str]:
    """The tags of a run that touches these tenants; filter by `pulse.tenant/<slug>=yes`.

    Of many, one tag says how many there are, and names the first.
    """
    if len(slugs) > NAMED:
        return {"pulse/tenants": f"{len(slugs)}: {', '.join(sorted(slugs)[:NAMED])}, ..."}
    return {f"pulse.tenant/{slug}": "yes" for slug in sorted(slugs)}
