"""/metrics, for Prometheus."""

from fastapi import Depends, Request, Response, Security
from prometheus_client import CONTENT_TYPE_LATEST

from pulse_api.http.auth import OPERATOR_KEY, operator
from pulse_api.http.pipeline_metrics import exposition
from pulse_api.http.problems import documented
from pulse_api.http.routing import resource
from pulse_resources.settings import load_settings

router = resource("health")


async def _scraper(request: Request) -> None:
    if not load_settings().api.open_metrics:
        await operator(request)


@router.get(
    "/metrics",
    summary="Metrics",
    dependencies=[Security(OPERATOR_KEY), Depends(_scraper)],
    response_class=Response,
    responses=documented(401, 429, 503) | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def get_metrics() -> Response:
    """Everything that Pulse measures, in Prometheus' text format.

    It names all tenants, so it needs an operator's key, unless the setting `api.open_metrics` is on.
    """
    return Response(exposition(), media_type=CONTENT_TYPE_LATEST)
