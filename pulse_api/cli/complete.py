"""Shell completion of tenants, datasets, schemas and keys. It has a deadline, and errors complete nothing."""

import threading
from collections.abc import Callable
from contextlib import suppress

import typer

from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import settings
from pulse_resources.local import ports

PATIENCE_S = 1.5
"""Maximum wait for a completion: the user has just pressed Tab."""


def tenants(incomplete: str) -> list[str]:
    """Slugs of all tenants."""
    return _looked_up(lambda: [tenant.slug for tenant in registry.list_tenants()], incomplete)


def datasets(ctx: typer.Context, incomplete: str) -> list[str]:
    """Slugs of the datasets of the tenant on the command line."""

    def find() -> list[str]:
        return [dataset.slug for dataset in registry.list_datasets(_tenant(ctx))]

    return _looked_up(find, incomplete)


def schema_uris(ctx: typer.Context, incomplete: str) -> list[str]:
    """Addresses of the schemas of the tenant on the command line."""

    def find() -> list[str]:
        return [schema.schema_uri for schema in registry.list_schemas(_tenant(ctx))]

    return _looked_up(find, incomplete)


def key_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of the keys, not revoked, of the tenant on the command line."""

    def find() -> list[str]:
        return [key.key_id for key in registry.keys.list_keys(_tenant(ctx)) if key.revoked_at is None]

    return _looked_up(find, incomplete)


def _tenant(ctx: typer.Context) -> Tenant:
    return registry.find_tenant(ctx.params["tenant"])


def _looked_up(find: Callable[[], list[str]], incomplete: str) -> list[str]:
    found: list[str] = []

    def look() -> None:
        postgres = settings.load_settings().postgres
        if ports.answers(postgres.host, postgres.port, timeout=PATIENCE_S / 3):
            found.extend(find())

    def quietly() -> None:
        with suppress(Exception):  # a completion cannot report errors
            look()

    looker = threading.Thread(target=quietly, daemon=True)
    looker.start()
    looker.join(PATIENCE_S)
    return [name for name in found if name.startswith(incomplete)]
