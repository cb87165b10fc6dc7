"""`pulse schema`: what a tenant's events look like."""

from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from pulse_api.cli import complete
from pulse_api.cli.arguments import TenantSlug, read
from pulse_api.cli.output import AsJson, emit, remark, show_table, write
from pulse_pipelines import registry
from pulse_pipelines.domain.shorthand import expand, is_shorthand
from pulse_pipelines.registry import PublishedSchema
from pulse_resources.errors import NotFound, UserError

app = typer.Typer(no_args_is_help=True, help="JSON Schemas that a tenant publishes; immutable.")


@app.command("publish")
def publish_schema(
    tenant: TenantSlug,
    name: Annotated[str, typer.Argument(help="Name of the schema; versions count up.")],
    file: Annotated[Path, typer.Argument(help="The schema's file; - reads standard input.", allow_dash=True)],
    as_json: AsJson = False,
) -> None:
    """Publish a JSON Schema as the next version of NAME and print its address.

    Drafts 2020-12 (if $schema names none), 2019-09, 7, 6 and 4, or the shorthand that the example shows.
    The same document again answers with the address that it has already.

    Example: echo '{"fields": {"country": "string", "at": "timestamp"}}' | pulse schema publish acme orders -
    """
    published = registry.publish_schema(
        registry.find_tenant(tenant), name, _written_out(read(file, "schema"))
    )
    if as_json:
        emit(_document(published) | {"created": published.created})
        return
    typer.echo(published.schema_uri)
    if not published.created:
        remark("This very document was published before.")


@app.command("list")
def list_schemas(tenant: TenantSlug, as_json: AsJson = False) -> None:
    """List every version of every schema of a tenant.

    Example: pulse schema list acme
    """
    found = registry.list_schemas(registry.find_tenant(tenant))
    if as_json:
        emit([_document(schema) for schema in found])
        return
    rows = ((schema.schema_uri, schema.published_at, len(schema.document)) for schema in found)
    show_table(("schema", "published", "characters"), rows, empty="No schemas yet: pulse schema publish")


@app.command("show")
def show_schema(
    tenant: TenantSlug,
    schema: Annotated[
        str,
        typer.Argument(
            help="Its address, or a name: its latest version.", autocompletion=complete.schema_uris
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Print a schema as it was published, byte for byte; with --json, what is known of it, too.

    Example: pulse schema show acme orders > orders.json
    """
    published = registry.list_schemas(registry.find_tenant(tenant))
    found = [one for one in published if schema in (one.schema_uri, one.name)]
    if not found:
        raise NotFound("no such schema", fix="See: pulse schema list", tenant=tenant, schema=schema)
    if as_json:
        emit(_document(found[-1]) | {"schema": orjson.loads(found[-1].document)})
    else:
        write(found[-1].document.removesuffix("\n") + "\n")


def _written_out(content: bytes) -> str:
    """The schema in `content`: as it is, or what its shorthand stands for."""
    try:
        document = orjson.loads(content)
        return orjson.dumps(expand(document)).decode() if is_shorthand(document) else content.decode()
    except ValueError as error:
        raise UserError(f"the schema is not JSON: {error}") from error


def _document(schema: PublishedSchema) -> dict[str, Any]:
    return {
        "schema_uri": schema.schema_uri,
        "name": schema.name,
        "version": schema.version,
        "published_at": schema.published_at,
    }
