"""`pulse dataset`: datasets, each an Iceberg table named by a slug."""

from typing import Annotated, Any

import typer

from pulse_api.cli import complete, move_progress
from pulse_api.cli.arguments import DatasetSlug, TenantSlug
from pulse_api.cli.guard import FAILED, complain
from pulse_api.cli.output import AsJson, emit, emit_or_say, say, show_fields, show_table
from pulse_pipelines import moves, registry
from pulse_pipelines.domain.dataset import Dataset, DatasetKind, OnInvalid
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources.errors import Incompatible, NotFound, UserError

app = typer.Typer(no_args_is_help=True, help="Datasets: Iceberg tables, each named by a slug.")

Address = Annotated[
    str,
    typer.Argument(
        help="Address of the schema: pulse://<tenant>/<name>/<version>.", autocompletion=complete.schema_uris
    ),
]


@app.command("create")
def create_dataset(
    tenant: TenantSlug,
    slug: Annotated[str, typer.Argument(help="Slug of the dataset: the name of its table.")],
    schema_uri: Address,
    name: Annotated[str | None, typer.Option(help="Display name; the slug by default.")] = None,
    on_invalid: Annotated[
        OnInvalid, typer.Option(help="What the API does with an event that does not match the schema.")
    ] = OnInvalid.REFUSE,
    kind: Annotated[
        DatasetKind, typer.Option(help="What its rows are: events, or versions of entities.")
    ] = DatasetKind.EVENTS,
    as_json: AsJson = False,
) -> None:
    """Create a dataset and its Iceberg table, by this slug in the tenant's namespace, partitioned by day.

    Example: pulse dataset create acme orders pulse://acme/orders/1 --on-invalid dead_letter
    """
    owner = registry.find_tenant(tenant)
    dataset = registry.create_dataset(owner, slug, schema_uri, name, on_invalid, kind)
    line = f"dataset {slug} has the id {dataset.dataset_id}: {owner.namespace}.{slug}"
    emit_or_say(_document(owner, dataset), line, as_json)


@app.command("list")
def list_datasets(tenant: TenantSlug, as_json: AsJson = False) -> None:
    """List a tenant's datasets.

    Example: pulse dataset list acme
    """
    owner = registry.find_tenant(tenant)
    datasets = registry.list_datasets(owner)
    if as_json:
        emit([_document(owner, dataset) for dataset in datasets])
        return
    rows = (
        (
            dataset.slug,
            dataset.kind,
            dataset.name,
            dataset.schema_uri,
            len(dataset.columns),
            dataset.on_invalid,
            dataset.dataset_id,
        )
        for dataset in datasets
    )
    columns = ("slug", "kind", "name", "schema", "columns", "on invalid", "id")
    show_table(columns, rows, empty="No datasets yet: pulse dataset create", spare=("id", "name", "columns"))


@app.command("show")
def show_dataset(tenant: TenantSlug, slug: DatasetSlug, as_json: AsJson = False) -> None:
    """Show a dataset: the schema that it follows, its table and its columns.

    Example: pulse dataset show acme orders
    """
    owner = registry.find_tenant(tenant)
    table = registry.current_table(owner, slug)
    document = _document(owner, table.dataset) | {"metadata_location": table.metadata_location}
    if as_json:
        emit(document)
        return
    columns = document.pop("columns")
    show_fields((name.replace("_", " "), value) for name, value in document.items())
    rows = ((column["field"], column["name"], column["type"]) for column in columns)
    show_table(("field", "column", "type"), rows, empty="The schema declares no fields")


@app.command("move")
def move_dataset(tenant: TenantSlug, slug: DatasetSlug, schema_uri: Address, as_json: AsJson = False) -> None:
    """Move a dataset, and its table with it, to a newer version of its schema.

    Possible when the change is compatible: optional fields added, integer to number, required to optional,
    bounds relaxed. Otherwise nothing changes, everything in the way is listed, and the exit code is 1.

    A change of a column's type needs a run that rewrites the data files. The command follows the run
    until it ends; after Ctrl-C the run continues.

    Example: pulse dataset move acme orders pulse://acme/orders/2
    """
    owner = registry.find_tenant(tenant)
    try:
        outcome = moves.ask(owner, slug, schema_uri)
    except Incompatible as error:
        _show_incompatible(error, as_json)
        raise typer.Exit(FAILED) from error
    if isinstance(outcome, moves.Move):
        _follow(owner, outcome, as_json)
    else:
        _show_moved(owner, outcome, as_json)


@app.command("moves")
def list_moves(tenant: TenantSlug, slug: DatasetSlug, as_json: AsJson = False) -> None:
    """List a dataset's moves that needed a run, the latest first.

    Example: pulse dataset moves acme orders
    """
    dataset_moves = moves.of_dataset(registry.find_tenant(tenant), slug)
    if as_json:
        emit(dataset_moves)
    else:
        move_progress.show(dataset_moves)


@app.command("follow")
def follow_move(tenant: TenantSlug, slug: DatasetSlug, as_json: AsJson = False) -> None:
    """Follow a dataset's latest move that needed a run until it ends; exit codes are those of `move`.

    Example: pulse dataset follow acme orders
    """
    owner = registry.find_tenant(tenant)
    dataset_moves = moves.of_dataset(owner, slug)
    if not dataset_moves:
        raise NotFound("no move of this dataset has needed a run", tenant=tenant, dataset=slug)
    _follow(owner, dataset_moves[0], as_json)


def _follow(owner: Tenant, move: "moves.Move", as_json: bool) -> None:
    ended = move_progress.follow(owner, move)
    if ended.state == moves.MoveState.DONE:
        _show_moved(owner, registry.find_dataset(owner, move.slug), as_json)
        return
    if as_json:
        emit(ended)
    complain(f"the dataset did not move: {ended.error}")
    raise typer.Exit(FAILED)


def _show_moved(owner: Tenant, dataset: Dataset, as_json: bool) -> None:
    emit_or_say(_document(owner, dataset), f"dataset {dataset.slug} follows {dataset.schema_uri}", as_json)


def _show_incompatible(error: Incompatible, as_json: bool) -> None:
    if as_json:
        emit({"error": error.message, "incompatibilities": error.incompatibilities})
    else:
        names = ("pointer", "change", "reason")
        rows = (
            [getattr(incompatibility, name) for name in names] for incompatibility in error.incompatibilities
        )
        show_table(("in the schema", "change", "why not"), rows, empty="")
    complain(str(error))


@app.command("delete")
def delete_dataset(
    tenant: TenantSlug,
    slug: DatasetSlug,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a dataset: its row and its table's entry in the catalog. Every file stays where it is.

    Events in flight to it become dead letters.

    Example: pulse dataset delete acme orders --yes
    """
    owner = registry.find_tenant(tenant)
    dataset = registry.find_dataset(owner, slug)
    if not yes and not typer.confirm(f"Delete the dataset {slug} of {tenant}? Its files stay.", err=True):
        raise UserError("nothing was deleted")
    deleted = registry.delete_dataset(owner, dataset.slug)
    if as_json:
        emit(
            {
                "dataset_id": deleted.dataset_id,
                "slug": deleted.slug,
                "files": "kept",
                "metadata_location": deleted.metadata_location,
            }
        )
        return
    say(f"dataset {slug} is deleted")
    if deleted.metadata_location:
        say(f"its files stay; any engine can read them through {deleted.metadata_location}")


def _document(owner: Tenant, dataset: Dataset) -> dict[str, Any]:
    return {
        "dataset_id": dataset.dataset_id,
        "slug": dataset.slug,
        "name": dataset.name,
        "schema_uri": dataset.schema_uri,
        "schema_version": dataset.schema_version,
        "schema_versions": sorted(dataset.documents),
        "on_invalid": dataset.on_invalid,
        "kind": dataset.kind,
        "table": f"{owner.namespace}.{dataset.slug}",
        "created_at": dataset.created_at,
        "columns": [
            {"field": column.field, "name": column.name, "type": column.type.kind.value}
            for column in dataset.columns
        ],
    }
