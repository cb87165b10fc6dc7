"""Names of a tenant's lake, as its engines and as the catalog's rows have them.

    what an engine says     what the catalog's row says
    events                  pulse_<tenant id, 32 hex digits>      datasets and rollups: only Pulse writes them
    staging                 pulse_<tenant id>.staging             the tenant's own: its engines write there
    staging.daily           pulse_<tenant id>.staging.daily

Nobody says another tenant's name: the stored one is made of the tenant of the key, never of what was asked.
"""

from urllib.parse import quote, unquote

from pulse_pipelines.domain.tenant import Tenant

Levels = tuple[str, ...]
"""A namespace as engines say it, from the outermost level on."""
EVENTS: Levels = ("events",)
SEPARATOR = "\x1f"
"""Between the levels of a namespace in a path."""
LONGEST = 255
"""Characters of a name in the catalog's rows."""


def stored(tenant: Tenant, namespace: Levels) -> str | None:
    """The catalog's name of a namespace; None where there can be none of this name."""
    return tenant.namespace if namespace == EVENTS else stored_own(tenant, namespace)


def stored_own(tenant: Tenant, namespace: Levels) -> str | None:
    """The catalog's name of a namespace of the tenant's own; None where it can have none of this name."""
    if not namespace or namespace[:1] == EVENTS or not all(map(usable, namespace)):
        return None
    name = own_root(tenant) + ".".join(quote(level, safe="").replace(".", "%2E") for level in namespace)
    return name if len(name) <= LONGEST else None


def own_root(tenant: Tenant) -> str:
    """What the stored names of all of the tenant's own namespaces begin with."""
    return f"{tenant.namespace}."


def levels(tenant: Tenant, place: str) -> Levels:
    """The namespace of the tenant's own that the catalog has by this name."""
    return tuple(map(unquote, place.removeprefix(own_root(tenant)).split(".")))


def usable(name: str) -> bool:
    """Whether a table or a level of a namespace may have this name."""
    return 0 < len(name) <= LONGEST and name.isprintable() and name not in (".", "..")


def written(namespace: Levels, table: str | None = None) -> str:
    """A name as messages show it."""
    return ".".join((*namespace, table) if table is not None else namespace)
