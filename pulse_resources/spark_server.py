"""Requirements on a Spark Connect server, and Pulse's settings on each of its sessions.

A server that runs in Pulse's own environment (`pulse up`, the container) declares its code, and has Pulse's
catalog. On any other, the session brings both: the code as an artifact, the catalog's address and secrets as
settings of the session only. During an upgrade, the server's code is of another version than a run's:
then the session brings the code alone, and workers prefer it (`runtime.spark_daemon`).
"""

import hashlib
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from pyspark.sql.connect.session import SparkSession

from pulse_resources import spark_code
from pulse_resources.errors import UserError
from pulse_resources.settings import Settings, load_settings
from pulse_resources.spark_catalog import EXTENSIONS, OURS, SECRETS, SESSION, TOMBSTONES, catalog

PREPARED = "spark.pulse.prepared"
"""Set on a session that is fully prepared."""
ROUNDS = 20_000
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
    settings, environment = load_settings(), has.get(OURS)
    is_ours = environment is not None
    problem = next(problems(session, has), None)
    if problem:
        raise UserError(problem[0], fix=problem[1], remote=settings.spark.place)
    for name, value in (SESSION if is_ours else SESSION | catalog(settings)).items():
        if has.get(name) != value:
            session.conf.set(name, value)
    for name in SECRETS if not is_ours else ():
        if name not in catalog(settings):
            session.conf.unset(name)  # otherwise Iceberg would take the placeholder for a value
    if environment != spark_code.digest() and PREPARED not in has:
        _send_code(session)
    session.conf.set(PREPARED, "true")


def problems(session: SparkSession, has: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Reasons why Pulse cannot use a server, each with a fix.

    Args:
        has: the session's settings.
    """
    client_release, server_release = (
        ".".join(release.split(".")[:2]) for release in (version("pyspark"), session.version)
    )
    if client_release != server_release:
        yield (
            f"the server is Spark {session.version}, and the client {version('pyspark')}",
            f"Use a Spark Connect server {client_release}, or that version's pyspark here",
        )
    if OURS in has:
        return
    for name, value in REQUIRED.items():
        if value not in re.split(r"\s*,\s*", has.get(name, "")):
            yield f"the server's configuration lacks {name} {value}", _add(name, value)
    shown: dict[str, str] = {row[0]: row[1] for row in session.sql("SET").collect()}  # secrets hidden
    for name in [secret for secret in SECRETS if secret in catalog(load_settings())]:
        if name not in shown:
            why = "its event log would show what a session sets by that name"
            yield f"the server's configuration lacks {name}: {why}", _add(name, PLACEHOLDER)
        elif shown[name] == PLACEHOLDER:
            yield f"the server's {_REDACTION} does not hide {name}", f"Remove {_REDACTION}, or have it match"


def _add(name: str, value: str) -> str:
    return f"Add this line to the server's spark-defaults.conf and restart it: {name} {value}"


def _send_code(session: SparkSession) -> None:
    with tempfile.TemporaryDirectory(prefix="pulse-code-") as folder:
        file = Path(folder) / spark_code.file_name()
        file.write_bytes(spark_code.archive())
        session.addArtifacts(str(file), pyfile=True)
        if str(file) in sys.path:  # it is for executors; this process keeps its own modules
            sys.path.remove(str(file))


def fingerprint(settings: Settings) -> str:
    """Fingerprint of a session's settings, including secrets, which cannot be recovered from it."""
    values = repr(sorted(catalog(settings).items())).encode()
    return hashlib.pbkdf2_hmac("sha256", values, spark_code.digest().encode(), ROUNDS).hex()
