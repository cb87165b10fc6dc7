"""Spark's configuration for Pulse: the Iceberg catalog and the settings of each session.

It is free of Spark's client, whose import takes a second: `pulse up` and its supervisor need the names alone.
"""

from pathlib import Path
from urllib.parse import quote

from pulse_resources.errors import UserError
from pulse_resources.settings import Settings
from pulse_resources.settings.service_settings import CATALOG, ObjectStoreSettings, PostgresSettings
from pulse_resources.store_keys import store_key

OURS = "spark.pulse.environment"
"""Set on a server whose executors run in Pulse's own environment: the digest of its code."""
TOMBSTONES = "spark.connect.session.manager.closedSessionsTombstonesSize"
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
IDLE_S = 30
SESSION = {
    # Results must not depend on a server's configuration: days, literals, names, errors.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.caseSensitive": "false",
    # Otherwise ${name} in a team's rollup would be replaced by a setting of the session.
    "spark.sql.variable.substitute": "false",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}
_PREFIX = f"spark.sql.catalog.{CATALOG}"
SESSION_TOKEN = f"{_PREFIX}.s3.session-token"
SECRETS = (f"{_PREFIX}.jdbc.password", f"{_PREFIX}.s3.secret-access-key", SESSION_TOKEN)
"""Spark hides a session's setting from its event log only if the server's configuration has a setting of that
name. (Clients see neither.)"""


def catalog(settings: Settings, jdbc: str | None = None) -> dict[str, str]:
    """Spark's configuration of the Iceberg catalog that pyiceberg's SqlCatalog shares; holds secrets.

    Args:
        jdbc: TLS parameters of the driver, if the server has the files in formats of its own.

    Raises:
        UserError: the password of its role is not set.
    """
    postgres, store = settings.postgres, settings.object_store
    password = postgres.role_passwords.get("pulse_catalog")
    if password is None:
        raise UserError(
            "no setting has the password of pulse_catalog, with which Spark reads the catalog of tables",
            fix="Run `pulse up`, which makes the role, or name it in PULSE_POSTGRES__ROLE_PASSWORDS",
        )
    # Iceberg never closes connections of ended sessions: Postgres does.
    options = f"currentSchema=iceberg_catalog&options=-c%20idle_session_timeout={IDLE_S}s"
    options += jdbc_tls(postgres) if jdbc is None else jdbc
    uri = f"jdbc:postgresql://{postgres.place}/{quote(postgres.database)}?{options}"
    return {
        _PREFIX: "org.apache.iceberg.spark.SparkCatalog",
        f"{_PREFIX}.type": "jdbc",
        f"{_PREFIX}.uri": uri,
        f"{_PREFIX}.jdbc.user": "pulse_catalog",
        f"{_PREFIX}.jdbc.password": password.get_secret_value(),
        f"{_PREFIX}.jdbc.schema-version": "V1",
        # Postgres closed it for either reason: the next query opens another.
        f"{_PREFIX}.retryable_status_codes": "57P01,57P05",
        # Migrations create the catalog's tables; the role may not.
        f"{_PREFIX}.init-catalog-tables": "false",
        f"{_PREFIX}.warehouse": f"s3://{store.bucket}/iceberg",
        # Others commit to these tables: just-pinned snapshots must be found.
        f"{_PREFIX}.cache-enabled": "false",
        f"{_PREFIX}.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        f"{_PREFIX}.s3.endpoint": store.endpoint,
        f"{_PREFIX}.s3.path-style-access": "true",
        f"{_PREFIX}.client.region": store.region,
        **_key(store),
    }


def _key(store: ObjectStoreSettings) -> dict[str, str]:
    """What opens the object store to the server; nothing where it has a role of its own, by AWS's rules."""
    if store.by_role:
        return {}
    key = store_key.of(store)
    return {
        f"{_PREFIX}.s3.access-key-id": key.access_key,
        f"{_PREFIX}.s3.secret-access-key": key.secret_key,
        **({SESSION_TOKEN: key.session_token} if key.session_token else {}),
    }


def jdbc_tls(postgres: PostgresSettings, sslkey: Path | None = None) -> str:
    """TLS parameters of a JDBC URL, each preceded by `&`.

    Args:
        sslkey: the key in a format that the driver accepts.
    """
    parameters = dict(postgres.tls)
    if parameters.get("sslrootcert") == "system":
        parameters["sslfactory"] = "org.postgresql.ssl.DefaultJavaSSLFactory"
        del parameters["sslrootcert"]
    if "sslkey" in parameters and sslkey:
        parameters["sslkey"] = str(sslkey)
    return "".join(f"&{name}={quote(value, safe='')}" for name, value in parameters.items())
