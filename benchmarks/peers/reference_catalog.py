"""Peer: Apache's reference server of Iceberg's REST specification, over the same Postgres and object store.

It is the server of Iceberg's own tests, with its JDBC catalog in a database of its own. It authenticates
no client, and hands out no credentials.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
from psycopg import sql

from pulse_resources.local.downloads import Jar, jars
from pulse_resources.local.ports import choose_any
from pulse_resources.local.prerequisites import java
from pulse_resources.local.spark import POSTGRES_DRIVER
from pulse_resources.settings import load_settings

VERSION, JETTY = "1.11.0", "12.1.5"
_ICEBERG, _JETTY = "org.apache.iceberg", "org.eclipse.jetty"
SERVER = jars(
    f"reference-catalog-{VERSION}",
    "Apache's reference REST catalog",
    Jar(_ICEBERG, "iceberg-open-api", VERSION, alone=True, classifiers=("test-fixtures",)),
    Jar(_ICEBERG, "iceberg-core", VERSION, classifiers=("", "tests")),
    Jar(_ICEBERG, "iceberg-aws", VERSION, alone=True),
    Jar(_ICEBERG, "iceberg-aws-bundle", VERSION, alone=True),
    Jar("org.apache.hadoop", "hadoop-client-api", "3.4.1", alone=True),
    Jar("org.apache.hadoop", "hadoop-client-runtime", "3.4.1", alone=True),
    Jar(f"{_JETTY}.ee10", "jetty-ee10-servlet", JETTY),
    Jar(f"{_JETTY}.compression", "jetty-compression-server", JETTY),
    Jar(f"{_JETTY}.compression", "jetty-compression-gzip", JETTY),
    Jar("org.postgresql", "postgresql", POSTGRES_DRIVER, alone=True),
    Jar("org.slf4j", "slf4j-simple", "2.0.17"),
    Jar("dev.failsafe", "failsafe", "3.3.2", alone=True),
    Jar("commons-logging", "commons-logging", "1.2", alone=True),
)
MAIN = "org.apache.iceberg.rest.RESTCatalogServer"
DATABASE = "reference_catalog"
PATIENCE_S = 60.0


@contextmanager
def serving(log: Path) -> Iterator[str]:
    """Run the server while the block runs; its address.

    Args:
        log: file for what it prints.

    Raises:
        AssertionError: it does not start; `log` says why.
    """
    SERVER.fetch(lambda line: None)
    _make_database()
    port = choose_any(())
    url = f"http://127.0.0.1:{port}"
    command = [
        java(),
        "-Xmx1g",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp",
        f"{SERVER.path}/*",
        MAIN,
    ]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=os.environ | _environment(port), stdout=output, stderr=subprocess.STDOUT
        )
        try:
            until = time.monotonic() + PATIENCE_S
            while not _answers(url):
                assert process.poll() is None, f"the reference server ended: see {log}"
                assert time.monotonic() < until, f"the reference server does not answer: see {log}"
                time.sleep(0.2)
            yield url
        finally:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/config").is_success
    except httpx.HTTPError:
        return False


def _make_database() -> None:
    with psycopg.connect(load_settings().postgres.superuser_url(), autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(DATABASE)))
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))


def _environment(port: int) -> dict[str, str]:
    """The server's properties, as it reads them: `__` stands for a hyphen, `_` for a dot."""
    settings = load_settings()
    database, store = settings.postgres, settings.object_store
    at = urlsplit(database.superuser_url(DATABASE))
    properties = {
        "rest.port": str(port),
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:postgresql://{at.hostname}:{at.port}/{DATABASE}",
        "jdbc.user": database.superuser,
        "jdbc.password": database.superuser_password.get_secret_value(),
        "warehouse": f"s3://{store.bucket}/reference-catalog",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": store.endpoint,
        "s3.path-style-access": "true",
        "s3.access-key-id": store.access_key,
        "s3.secret-access-key": store.secret_key.get_secret_value(),
        "client.region": store.region,
    }
    return {
        f"CATALOG_{name.upper().replace('-', '__').replace('.', '_')}": value
        for name, value in properties.items()
    }
