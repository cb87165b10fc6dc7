"""`pulse index`: indexes over the entities of a dataset."""

from collections.abc import Sequence
from typing import Annotated

import typer

from pulse_api.cli.arguments import DatasetSlug, TenantSlug
from pulse_api.cli.output import AsJson, emit, emit_or_say, remark, show_table
from pulse_pipelines import registry
from pulse_pipelines.entities import index_build, indexes

app = typer.Typer(no_args_is_help=True, help="Indexes of datasets of entities, by which subsets are read.")


@app.command("create")
def create_index(
    tenant: TenantSlug,
    slug: DatasetSlug,
    expression: Annotated[
        str, typer.Argument(help="Expression, such as lower(continent); see docs/entities.md.")
    ],
    as_json: AsJson = False,
) -> None:
    """Create an index and build it from the log; if it exists, continue building it.

    Example: pulse index create acme countries "lower(continent)"
    """
    owner = registry.find_tenant(tenant)
    index_id = indexes.declare(owner, slug, expression).index_id
    index_build.build(
        owner, slug, index_id, lambda done, of: remark(f"built up to version {done:,} of {of:,}")
    )
    index = indexes.declare(owner, slug, expression)
    emit_or_say(index, f"index {index.index_id} by {index.expression} has {index.entries:,} entries", as_json)


@app.command("list")
def list_indexes(tenant: TenantSlug, slug: DatasetSlug, as_json: AsJson = False) -> None:
    """List a dataset's indexes, with their size and who reads by them.

    Example: pulse index list acme countries
    """
    declared = indexes.list_indexes(registry.find_tenant(tenant), slug)
    if as_json:
        emit(declared)
        return
    rows = (
        (
            index.index_id,
            index.expression,
            index.entries,
            index.bytes,
            index.behind,
            _reader_text(index.readers),
            index.read_at,
            "orphaned" if index.orphaned else "",
        )
        for index in declared
    )
    columns = ("index", "by", "entries", "bytes", "behind", "readers", "read", "state")
    show_table(
        columns, rows, empty="No index of this dataset yet: pulse index create", spare=("read", "bytes")
    )


@app.command("drop")
def drop_index(
    tenant: TenantSlug,
    slug: DatasetSlug,
    index: Annotated[int, typer.Argument(help="The index, by its number in `pulse index list`.")],
    as_json: AsJson = False,
) -> None:
    """Drop an index. Subsets by it can no longer be read, until it is created again.

    Example: pulse index drop acme countries 7
    """
    expression = indexes.drop(registry.find_tenant(tenant), slug, index)
    emit_or_say({"dropped": expression}, f"the index by {expression} is dropped", as_json)


def _reader_text(readers: Sequence[str]) -> str:
    """How many keys read by an index, and which transforms."""
    pipes = [reader for reader in readers if reader.startswith("pipe ")]
    return ", ".join([str(len(readers) - len(pipes)), *pipes])
