"""Names of a tenant's lake, as its engines and as the catalog's rows have them.

    what an engine says     what the catalog's row says
    events                  pulse_<tenant id, 32 hex digits>      datasets and rollups: only Pulse writes them

Nobody says another tenant's name: the stored one is made of the tenant of the key, never of what was asked.
"""

from pulse_pipelines.domain.tenant import Tenant

Levels = tuple[str, ...]
"""A namespace as engines say it, from the outermost level on."""
EVENTS: Levels = ("events",)
SEPARATOR = "\x1f"
"""Between the levels of a namespace in a path."""


def stored(tenant: Tenant, namespace: Levels) -> str | None:
    """The catalog's name of a namespace; None where there is none of this name."""
    return tenant.namespace if namespace == EVENTS else None


def written(namespace: Levels, table: str | None = None) -> str:
    """A name as messages show it."""
    return ".".join((*namespace, table) if table is not None else namespace)
