"""`pulse lake connect`: configuration or code that connects an engine to a tenant's tables."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer

from pulse_api.cli.arguments import TenantSlug, duration
from pulse_api.cli.output import AsJson, emit, remark
from pulse_pipelines import registry
from pulse_pipelines.domain.key import KeyScope
from pulse_resources import settings
from pulse_resources.errors import UserError
from pulse_resources.local import spark

app = typer.Typer(
    no_args_is_help=True, help="Access to the lake for other engines, through the REST catalog."
)


class Engine(StrEnum):
    """An engine that reads Iceberg tables through a REST catalog."""

    DUCKDB = "duckdb"
    PYICEBERG = "pyiceberg"
    SPARK = "spark"
    TRINO = "trino"


@app.callback()
def _group() -> None:
    """A group of its own, although it has one command."""


@app.command()
def connect(
    tenant: TenantSlug,
    engine: Annotated[Engine, typer.Option(help="The engine to connect.")],
    key: Annotated[
        str | None, typer.Option(envvar="KEY", help="A key with the scope lake:read. [default: a new one]")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Let the new key write tables of the tenant's own, too.")
    ] = False,
    expires_in: Annotated[
        timedelta,
        typer.Option(parser=duration, metavar="DURATION", help="Let the new key expire after this time."),
    ] = "30d",  # type: ignore[assignment] # typer parses the default, too
    as_json: AsJson = False,
) -> None:
    """Print what an engine needs to read a tenant's tables, with a key that opens nothing else.

    Example: pulse lake connect acme --engine duckdb
    """
    owner, issued = registry.find_tenant(tenant), None
    if key is not None:
        remark("With the key of --key, or of the environment's KEY")
        if write:
            raise UserError("--write applies to a new key only", fix="Leave out --key, and unset KEY")
    else:
        ends = datetime.now(UTC) + expires_in
        scopes = [KeyScope.LAKE_READ, *([KeyScope.LAKE_WRITE] if write else [])]
        issued = registry.keys.issue_key(owner, f"lake {engine}", scopes, ends)
        key = issued.text
        remark(f"With a new key, {issued.stored.key_id}: pulse key revoke {tenant} {issued.stored.key_id}")
    catalog = settings.load_settings().lake.linked_url
    text = written(engine, owner.slug, key, catalog)
    if as_json:
        emit({"engine": engine, "catalog": catalog, "key_id": issued and issued.stored.key_id, "paste": text})
    else:
        typer.echo(text)


def written(engine: Engine, tenant: str, key: str, catalog: str) -> str:
    """The text to paste into an engine; it contains the key."""
    store = settings.load_settings().object_store
    packages = (
        f"org.apache.iceberg:{name}:{spark.ICEBERG}" for name in (spark.RUNTIME, "iceberg-aws-bundle")
    )
    return _WRITTEN[engine].format(
        tenant=tenant,
        key=key,
        catalog=catalog,
        store=store.linked_endpoint,
        region=store.region,
        packages=",".join(packages),
    )


_WRITTEN = {
    Engine.DUCKDB: """\
INSTALL iceberg; LOAD iceberg;
CREATE SECRET pulse_{tenant} (TYPE iceberg, CLIENT_ID '{tenant}', CLIENT_SECRET '{key}',
    OAUTH2_SERVER_URI '{catalog}/v1/oauth/tokens');
ATTACH '{tenant}' AS "{tenant}" (TYPE iceberg, SECRET pulse_{tenant}, ENDPOINT '{catalog}');
SHOW ALL TABLES;""",
    Engine.PYICEBERG: """\
from pyiceberg.catalog.rest import RestCatalog

catalog = RestCatalog("{tenant}", uri="{catalog}", warehouse="{tenant}", credential="{key}")
print(catalog.list_tables("events"))""",
    Engine.SPARK: """\
spark-sql \\
  --packages {packages} \\
  --conf spark.sql.catalog.{tenant}=org.apache.iceberg.spark.SparkCatalog \\
  --conf spark.sql.catalog.{tenant}.type=rest \\
  --conf spark.sql.catalog.{tenant}.uri={catalog} \\
  --conf spark.sql.catalog.{tenant}.warehouse={tenant} \\
  --conf spark.sql.catalog.{tenant}.credential={key} \\
  --conf spark.sql.catalog.{tenant}.oauth2-server-uri={catalog}/v1/oauth/tokens \\
  --conf spark.sql.catalog.{tenant}.io-impl=org.apache.iceberg.aws.s3.S3FileIO \\
  -e 'SHOW TABLES IN {tenant}.events'""",
    Engine.TRINO: """\
# etc/catalog/{tenant}.properties
connector.name=iceberg
iceberg.catalog.type=rest
iceberg.rest-catalog.uri={catalog}
iceberg.rest-catalog.warehouse={tenant}
iceberg.rest-catalog.security=OAUTH2
iceberg.rest-catalog.oauth2.token={key}
iceberg.rest-catalog.oauth2.token-refresh-enabled=false
iceberg.rest-catalog.vended-credentials-enabled=true
iceberg.rest-catalog.nested-namespace-enabled=true
iceberg.allowed-extra-properties=pulse.upkeep,pulse.upkeep.merge,pulse.erasure
fs.native-s3.enabled=true
s3.endpoint={store}
s3.region={region}
s3.path-style-access=true""",
}
