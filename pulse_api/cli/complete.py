"""Shell completion of tenants, datasets, schemas and keys. It has a deadline, and errors complete nothing.

A person has just pressed Tab, so that completion gives up after 1.5 seconds, or PULSE_COMPLETION_SECONDS.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress

import typer

from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import settings
from pulse_resources.local import ports

PATIENCE = "PULSE_COMPLETION_SECONDS"


def tenants(incomplete: str) -> list[str]:
    """Slugs of all tenants."""
    return complete_names(lambda: [tenant.slug for tenant in registry.list_tenants()], incomplete)


def datasets(ctx: typer.Context, incomplete: str) -> list[str]:
    """Slugs of the datasets of the tenant on the command line."""

    def find() -> list[str]:
        return [dataset.slug for dataset in registry.list_datasets(_tenant(ctx))]

    return complete_names(find, incomplete)


def schema_uris(ctx: typer.Context, incomplete: str) -> list[str]:
    """Addresses of the schemas of the tenant on the command line."""

    def find() -> list[str]:
        return [schema.schema_uri for schema in registry.list_schemas(_tenant(ctx))]

    return complete_names(find, incomplete)


def key_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of the keys, not revoked, of the tenant on the command line."""

    def find() -> list[str]:
        return [key.key_id for key in registry.keys.list_keys(_tenant(ctx)) if key.revoked_at is None]

    return complete_names(find, incomplete)


def _tenant(ctx: typer.Context) -> Tenant:
    return registry.find_tenant(ctx.params["tenant"])


def complete_names(find: Callable[[], list[str]], incomplete: str) -> list[str]:
    """The names that begin as typed; none if they are not there in time."""
    names: list[str] = []
    patience = float(os.environ.get(PATIENCE, "1.5"))

    def find_if_up() -> None:
        postgres = settings.load_settings().postgres
        if ports.answers(postgres.host, postgres.port, timeout=patience / 3):
            names.extend(find())

    def quietly() -> None:
        with suppress(Exception):  # a completion cannot report errors
            find_if_up()

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(patience)
    return [name for name in names if name.startswith(incomplete)]
