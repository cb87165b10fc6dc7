"""`pulse tenant`, `pulse schema` and `pulse dataset`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pulse_pipelines import registry
from pulse_resources.errors import UserError

tenants = typer.Typer(no_args_is_help=True, help="Tenants: who owns events, schemas and datasets.")
schemas = typer.Typer(no_args_is_help=True, help="JSON Schemas that a tenant publishes; immutable.")
datasets = typer.Typer(no_args_is_help=True, help="Datasets: an Iceberg table behind a slug.")

TenantSlug = Annotated[str, typer.Argument(help="The tenant's slug.", show_default=False)]


@tenants.command("create")
def create_tenant(
    slug: TenantSlug,
    name: Annotated[str | None, typer.Option(help="Full name; the slug if not given.")] = None,
) -> None:
    """Register a tenant and create its topics `pulse.<id>.events` and `pulse.<id>.events.dlq`."""
    tenant = registry.create_tenant(slug, name)
    Console(soft_wrap=True).print(f"tenant {slug} has the id {tenant.tenant_id} and the topic {tenant.topic}")


@tenants.command("list")
def list_tenants() -> None:
    """List all tenants."""
    table = Table("slug", "id", "namespace")
    for tenant in registry.list_tenants():
        table.add_row(tenant.slug, str(tenant.tenant_id), tenant.namespace)
    Console().print(table)


@schemas.command("publish")
def publish_schema(
    tenant: TenantSlug,
    name: Annotated[str, typer.Argument(help="Name of the schema; versions count up.")],
    file: Annotated[Path, typer.Argument(help="JSON Schema file (draft 2020-12 by default).")],
) -> None:
    """Publish a JSON Schema as the next version of NAME and print its address.

    The same document again answers with the address that it has already.
    """
    try:
        document = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the schema: {error}") from error
    typer.echo(registry.publish_schema(registry.find_tenant(tenant), name, document).schema_uri)


@datasets.command("create")
def create_dataset(
    tenant: TenantSlug,
    slug: Annotated[str, typer.Argument(help="Slug of the dataset: the name of its table.")],
    schema_uri: Annotated[str, typer.Argument(help="pulse://<tenant>/<name>/<version>")],
    name: Annotated[str | None, typer.Option(help="Full name; the slug if not given.")] = None,
) -> None:
    """Create a dataset with its Iceberg table `pulse_<tenant>.<slug>`, partitioned by day."""
    owner = registry.find_tenant(tenant)
    dataset = registry.create_dataset(owner, slug, schema_uri, name)
    Console(soft_wrap=True).print(f"dataset {slug} has the id {dataset.dataset_id}: {owner.namespace}.{slug}")


@datasets.command("list")
def list_datasets(tenant: TenantSlug) -> None:
    """List a tenant's datasets."""
    table = Table("slug", "name", "schema", "columns", "id")
    for dataset in registry.list_datasets(registry.find_tenant(tenant)):
        columns = str(len(dataset.columns))
        table.add_row(dataset.slug, dataset.name, dataset.schema_uri, columns, str(dataset.dataset_id))
    Console().print(table)
