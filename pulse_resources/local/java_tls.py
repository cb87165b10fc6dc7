"""TLS of the embedded Spark server: the settings' files in Java's formats.

Postgres' driver needs a client's key in DER, and the S3 client uses the JVM's trust store.
"""

import base64
import re
import subprocess
from pathlib import Path

from pulse_resources import spark_catalog
from pulse_resources.errors import Terminal, UserError
from pulse_resources.home import write_atomically
from pulse_resources.local.prerequisites import java
from pulse_resources.settings import Settings
from pulse_resources.settings.service_settings import PostgresSettings

_KEY, _TRUSTED = "postgres.pk8", "trusted.p12"
_PASSWORD = "changeit"  # noqa: S105 - Java asks for one; the store holds certificates, which are public
_PEM = r"-----BEGIN {0}-----\n.*?-----END {0}-----"


def prepare(folder: Path, settings: Settings) -> None:
    """Write the files that the settings require into Spark's folder.

    Raises:
        UserError: a file named in the settings cannot be used.
    """
    if key := settings.postgres.sslkey:
        match = re.search(_PEM.format("PRIVATE KEY"), _read(key, "PULSE_POSTGRES__SSLKEY"), re.DOTALL)
        if match is None:
            raise UserError(
                f"{key} is not a key for Spark's driver of Postgres: PEM, PKCS #8, without a password",
                fix="Convert it (openssl pkcs8 -topk8 -nocrypt), and name that in PULSE_POSTGRES__SSLKEY",
            )
        content = base64.b64decode("".join(match[0].splitlines()[1:-1]))
        (folder / _KEY).unlink(missing_ok=True)
        (folder / _KEY).touch(mode=0o600)
        (folder / _KEY).write_bytes(content)
    if authorities := settings.object_store.ca_file:
        _trust(folder / _TRUSTED, authorities)


def options(folder: Path, settings: Settings) -> str:
    """JVM options, each preceded by a space."""
    if settings.object_store.ca_file is None:
        return ""
    store = "-Djavax.net.ssl.trustStore"
    return f" {store}={folder / _TRUSTED} {store}Type=PKCS12 {store}Password={_PASSWORD}"


def jdbc(folder: Path, postgres: PostgresSettings) -> str:
    """JDBC URL parameters, each preceded by `&`."""
    return spark_catalog.jdbc_tls(postgres, folder / _KEY)


def _trust(store: Path, authorities: Path) -> None:
    """Trust store of a file's certificates; keytool imports one at a time."""
    content = _read(authorities, "PULSE_OBJECT_STORE__CA_FILE")
    certificates = re.findall(_PEM.format("CERTIFICATE"), content, re.DOTALL)
    if not certificates:
        raise UserError(
            f"{authorities} has no certificate in it", fix="PULSE_OBJECT_STORE__CA_FILE must be PEM"
        )
    fresh, single = store.with_suffix(".new"), store.with_suffix(".pem")
    fresh.unlink(missing_ok=True)
    for number, certificate in enumerate(certificates):
        write_atomically(single, certificate + "\n")
        command = [str(Path(java()).resolve().parent / "keytool"), "-importcert", "-noprompt"]
        command += ["-alias", str(number), "-file", str(single), "-keystore", str(fresh)]
        done = subprocess.run(
            [*command, "-storetype", "PKCS12", "-storepass", _PASSWORD],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Terminal(f"keytool accepted no certificate of {authorities}: {done.stdout.strip()}")
    single.unlink()
    fresh.replace(store)


def _read(path: Path, setting: str) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise UserError(f"{setting} cannot be read: {error}", fix="Name a file that is there") from error
