"""Whether the process lives, and whether it can do its work."""

import psycopg
from confluent_kafka import KafkaException
from pydantic import BaseModel

from pulse_api.http.problems import ProblemError, documented
from pulse_api.http.routing import resource
from pulse_resources import kafka, postgres

router = resource("health")


class Health(BaseModel):
    status: str


@router.get("/healthz", summary="Liveness")
async def healthz() -> Health:
    """The process answers; says nothing of what is behind it."""
    return Health(status="ok")


@router.get("/readyz", summary="Readiness", responses=documented(503))
def readyz() -> Health:
    """Postgres and Kafka answer."""
    try:
        with postgres.transaction("pulse_api") as connection:
            connection.execute("SELECT 1")
        kafka.admin().list_topics(topic="", timeout=3)
    except (psycopg.Error, KafkaException) as error:
        what = "Kafka" if isinstance(error, KafkaException) else "Postgres"
        raise ProblemError(
            503, "unavailable", f"{what} does not answer", headers={"Retry-After": "1"}
        ) from error
    return Health(status="ready")
