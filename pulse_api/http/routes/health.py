"""Liveness and readiness of the process."""

from fastapi import Request
from pydantic import BaseModel

from pulse_api.http.app_state import app_state
from pulse_api.http.problems import ProblemError, documented
from pulse_api.http.routing import resource

router = resource("health")


class Health(BaseModel):
    status: str


@router.get("/healthz", summary="Liveness")
async def get_liveness() -> Health:
    """The process answers; the services that it needs are not checked."""
    return Health(status="ok")


@router.get("/readyz", summary="Readiness", responses=documented(503))
async def get_readiness(request: Request) -> Health:
    """Postgres and Kafka answer. They are checked once a second, however often this is requested."""
    if (missing := await app_state(request).readiness.missing()) is not None:
        raise ProblemError(503, "unavailable", f"{missing} does not answer", headers={"Retry-After": "1"})
    return Health(status="ready")
