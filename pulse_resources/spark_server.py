"""Requirements on a Spark Connect server, and Pulse's settings on each of its sessions.

A server that runs in Pulse's own environment (`pulse up`, the container) says so, and has Pulse's code and
catalog. On any other, the session brings both: the code as an artifact, the catalog's address and secrets as
settings of the session only.
"""

import hashlib
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote

from pyspark.sql.connect.session import SparkSession

from pulse_resources import spark_code, store_key
from pulse_resources.errors import UserError
from pulse_resources.iceberg import CATALOG
from pulse_resources.service_settings import ObjectStoreSettings, PostgresSettings
from pulse_resources.settings import Settings, load_settings

OURS = "spark.pulse.environment"
"""Set on a server whose executors run in Pulse's own environment."""
PREPARED = "spark.pulse.prepared"
"""Set on a session that is fully prepared."""
TOMBSTONES = "spark.connect.session.manager.closedSessionsTombstonesSize"
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
IDLE_S = 30
ROUNDS = 20_000
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
_REDACTION = "spark.redaction.regex"
REQUIRED = {
    "spark.sql.extensions": EXTENSIONS,
    TOMBSTONES: "0",  # all runs enter one session; a closed one could not be entered again
}
"""Required server configuration besides Pulse's own; a session cannot set it."""
PLACEHOLDER = "of-the-session"


def prepare(session: SparkSession) -> None:
    """Check the server, and add to the session what it lacks; existing settings stay.

    Raises:
        UserError: Pulse cannot use the server.
    """
    has: Mapping[str, str] = session.conf.getAll
    if has.get(PREPARED) == "true" and all(has.get(name) == value for name, value in SESSION.items()):
        return
    settings, own = load_settings(), OURS in has
    problem = next(problems(session, has), None)
    if problem:
        raise UserError(problem[0], fix=problem[1], remote=settings.spark.place)
    for name, value in (SESSION if own else SESSION | catalog(settings)).items():
        if has.get(name) != value:
            session.conf.set(name, value)
    for name in SECRETS if not own else ():
        if name not in catalog(settings):
            session.conf.unset(name)  # otherwise Iceberg would take the placeholder for a value
    if not own and PREPARED not in has:
        _send_code(session)
    session.conf.set(PREPARED, "true")


def problems(session: SparkSession, has: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Reasons why Pulse cannot use a server, each with a fix.

    Args:
        has: the session's settings.
    """
    ours, theirs = (".".join(each.split(".")[:2]) for each in (version("pyspark"), session.version))
    if ours != theirs:
        yield (
            f"the server is Spark {session.version}, and the client {version('pyspark')}",
            f"Use a Spark Connect server {ours}, or that version's pyspark here",
        )
    if OURS in has:
        return
    for name, value in REQUIRED.items():
        if value not in re.split(r"\s*,\s*", has.get(name, "")):
            yield f"the server's configuration lacks {name} {value}", _add(name, value)
    shown: dict[str, str] = {row[0]: row[1] for row in session.sql("SET").collect()}  # secrets hidden
    for name in (each for each in SECRETS if each in catalog(load_settings())):
        if name not in shown:
            why = "its event log would show what a session sets by that name"
            yield f"the server's configuration lacks {name}: {why}", _add(name, PLACEHOLDER)
        elif shown[name] == PLACEHOLDER:
            yield f"the server's {_REDACTION} does not hide {name}", f"Remove {_REDACTION}, or have it match"


def _add(name: str, value: str) -> str:
    return f"Add this line to the server's spark-defaults.conf and restart it: {name} {value}"


def _send_code(session: SparkSession) -> None:
    with tempfile.TemporaryDirectory(prefix="pulse-code-") as folder:
        file = Path(folder) / f"pulse-{spark_code.digest()}.zip"
        file.write_bytes(spark_code.archive())
        session.addArtifacts(str(file), pyfile=True)
        if str(file) in sys.path:  # it is for executors; this process keeps its own modules
            sys.path.remove(str(file))


def fingerprint(settings: Settings) -> str:
    """Fingerprint of what a session is given, including secrets, which cannot be recovered from it."""
    given = repr(sorted(catalog(settings).items())).encode()
    return hashlib.pbkdf2_hmac("sha256", given, spark_code.digest().encode(), ROUNDS).hex()


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
    given = dict(postgres.tls)
    if given.get("sslrootcert") == "system":
        given["sslfactory"] = "org.postgresql.ssl.DefaultJavaSSLFactory"
        del given["sslrootcert"]
    if "sslkey" in given and sslkey:
        given["sslkey"] = str(sslkey)
    return "".join(f"&{name}={quote(value, safe='')}" for name, value in given.items())
