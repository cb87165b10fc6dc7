"""Run tags that filter the Runs page by tenant.

A tag has one value but a batch has many tenants, so each tenant is a key of its own, `pulse.tenant/<slug>`,
on every run that touches it. `pulse/tenant` is only on runs for a single tenant, for concurrency limits to
count; batches never wait for those.
"""

from collections.abc import Collection

NAMED = 3
"""Tenants of a run that get tags: all tags of a run should fit on one line in the UI."""


def tenant_tags(slugs: Collection[str]) -> dict[str, str]:
    """Tags of a run that touches these tenants; filter by `pulse.tenant/<slug>=yes`.

    For more than `NAMED` tenants, one tag gives their number and the first names.
    """
    if len(slugs) > NAMED:
        return {"pulse/tenants": f"{len(slugs)}: {', '.join(sorted(slugs)[:NAMED])}, ..."}
    return {f"pulse.tenant/{slug}": "yes" for slug in sorted(slugs)}
