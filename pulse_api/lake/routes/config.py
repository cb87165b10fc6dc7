"""GET /v1/config, the first request of every client; and health checks of the catalog."""

from starlette.requests import Request
from starlette.responses import Response

from pulse_api.http.problems import ProblemError
from pulse_api.lake.errors import body
from pulse_api.lake.routing import CatalogRequest, endpoint, json_response, open_endpoint
from pulse_api.lake.state import lake_state
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.lake.requests import RETENTION

OFFERED = (
    "GET /v1/{prefix}/namespaces",
    "POST /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "DELETE /v1/{prefix}/namespaces/{namespace}",
    "POST /v1/{prefix}/namespaces/{namespace}/properties",
    "POST /v1/{prefix}/namespaces/{namespace}/register",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "POST /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "DELETE /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/metrics",
    "POST /v1/{prefix}/tables/rename",
    "GET /v1/{prefix}/namespaces/{namespace}/views",
    "POST /v1/{prefix}/namespaces/{namespace}/views",
    "POST /v1/{prefix}/namespaces/{namespace}/register-view",
    "GET /v1/{prefix}/namespaces/{namespace}/views/{view}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/views/{view}",
    "POST /v1/{prefix}/namespaces/{namespace}/views/{view}",
    "DELETE /v1/{prefix}/namespaces/{namespace}/views/{view}",
    "POST /v1/{prefix}/views/rename",
    "POST /v1/{prefix}/transactions/commit",
)
"""In the specification's notation: clients request no other endpoints."""


def _config(request: CatalogRequest) -> Response:
    """Configuration. A warehouse is a tenant; the key selects it, so clients may name it but need not."""
    warehouse = request.query.get("warehouse", "")
    if warehouse not in ("", request.caller.tenant.slug):
        missing = ProblemError(404, "not-found", f"Warehouse does not exist: {warehouse[:200]}")
        return Response(body(missing, "NoSuchWarehouseException"), 404, media_type="application/json")
    return json_response(
        {"defaults": {}, "overrides": {}, "endpoints": OFFERED, "idempotency-key-lifetime": RETENTION}
    )


async def _healthz(_: Request) -> Response:
    return json_response({"status": "ok"})


async def _readyz(request: Request) -> Response:
    """Readiness: Postgres answers. It is checked once a second, however often this is requested."""
    if (missing := await lake_state(request).readiness.missing()) is not None:
        raise ProblemError(503, "unavailable", f"{missing} does not answer", headers={"Retry-After": "1"})
    return json_response({"status": "ready"})


routes = [
    endpoint("GET", "/v1/config", KeyScope.LAKE_READ, _config),
    open_endpoint("GET", "/healthz", _healthz),
    open_endpoint("GET", "/readyz", _readyz),
]
