"""Configuration or code that connects an engine to a tenant's tables, through the REST catalog."""

from enum import StrEnum

from pulse_resources import settings
from pulse_resources.spark_packages import AWS_BUNDLE, ICEBERG, RUNTIME


class Engine(StrEnum):
    """An engine that reads Iceberg tables through a REST catalog."""

    DUCKDB = "duckdb"
    PYICEBERG = "pyiceberg"
    SPARK = "spark"
    TRINO = "trino"


def written(engine: Engine, tenant: str, key: str, catalog: str) -> str:
    """The text to paste into an engine; it contains the key."""
    store = settings.load_settings().object_store
    packages = (f"org.apache.iceberg:{name}:{ICEBERG}" for name in (RUNTIME, AWS_BUNDLE))
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
