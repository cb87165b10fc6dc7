"""Spark: address, version and configuration, a test job, and the state of the executors."""

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version

from pyspark.errors import PySparkException

from pulse_pipelines.monitoring.doctor import executors
from pulse_pipelines.monitoring.doctor.finding import PATIENCE_S, Finding, reached
from pulse_resources import spark
from pulse_resources.errors import UserError, first_line
from pulse_resources.settings import Settings

SPARK = "spark"
_UP = "Start it (`pulse up` starts the embedded one), or correct PULSE_SPARK__REMOTE: sc://host:port"

_CONNECT = (
    "Name the port of Spark Connect (15002 by default) in PULSE_SPARK__REMOTE; end it with /;use_ssl=true if "
    "TLS is spoken there, with a certificate that this machine trusts, and only then"
)
_LOGIN = "Set PULSE_SPARK__TOKEN to the server's spark.connect.authenticate.token"


def check_spark(settings: Settings) -> Iterator[Finding]:
    """Check Spark with a minimal job, which starts executors."""
    at = reached(SPARK, *settings.spark.address, _UP)
    yield at
    if not at.ok:
        return
    if not spark.answers(PATIENCE_S):  # asked first, for the client would try again for ten minutes
        where = settings.spark.place.removeprefix("sc://")
        yield Finding(SPARK, "server", False, f"{where} answers, but not as Spark Connect does", _CONNECT)
        return
    with ExitStack() as opened:
        try:
            session = opened.enter_context(spark.session())
        except UserError as error:
            yield Finding(SPARK, "server", False, error.message, error.fix)
            return
        except PySparkException as error:
            yield Finding(SPARK, "login", False, first_line(error), _LOGIN)
            return
        versions = f"Spark {session.version}, the client has {version('pyspark')}"
        yield Finding(SPARK, "server", True, f"{versions}; its configuration has what Pulse needs")
        count = session.range(10).count()
        yield Finding(SPARK, "job", count == 10, "a job ran", "Look at the executors in Spark's UI")
        yield from executors.check_executors(session)
