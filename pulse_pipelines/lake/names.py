"""Names in a tenant's lake, as its engines use them and as the catalog's rows store them.

        name for engines        name in the catalog's row
    events                  pulse_<tenant id, 32 hex digits>      datasets and rollups: only Pulse writes them
    staging                 pulse_<tenant id>.staging             the tenant's own: its engines write there
    staging.daily           pulse_<tenant id>.staging.daily

No request can name another tenant's namespace: the stored name contains the tenant of the API key.
"""

from urllib.parse import quote, unquote

from pulse_pipelines.domain.tenant import Tenant

Levels = tuple[str, ...]
"""A namespace as engines name it, from the outermost level on."""
EVENTS: Levels = ("events",)
SEPARATOR = "\x1f"
"""Separator of the levels of a namespace in a URL path."""
LONGEST = 255
"""Longest name in the catalog's rows, in characters."""


def stored(tenant: Tenant, namespace: Levels) -> str | None:
    """The stored name of a namespace; None if no namespace can have this name."""
    return tenant.namespace if namespace == EVENTS else encoded_namespace(tenant, namespace)


def encoded_namespace(tenant: Tenant, namespace: Levels) -> str | None:
    """The stored name of a namespace of the tenant's own; None if none of these can have this name."""
    if not namespace or namespace[:1] == EVENTS or not all(map(usable, namespace)):
        return None
    name = tenant_root(tenant) + ".".join(quote(level, safe="").replace(".", "%2E") for level in namespace)
    return name if len(name) <= LONGEST else None


def tenant_root(tenant: Tenant) -> str:
    """The prefix of the stored names of all of the tenant's own namespaces."""
    return f"{tenant.namespace}."


def levels(tenant: Tenant, place: str) -> Levels:
    """The levels of one of the tenant's own namespaces, from its stored name."""
    return tuple(map(unquote, place.removeprefix(tenant_root(tenant)).split(".")))


def usable(name: str) -> bool:
    """Whether a table or a level of a namespace may have this name."""
    return 0 < len(name) <= LONGEST and name.isprintable() and name not in (".", "..")


def written(namespace: Levels, table: str | None = None) -> str:
    """A name as it appears in messages."""
    return ".".join((*namespace, table) if table is not None else namespace)
