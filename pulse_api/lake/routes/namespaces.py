"""Namespaces: `events`, where the tenant's datasets and their rollups are."""

from starlette.responses import Response

from pulse_api.lake.routing import Asked, endpoint, json_response
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.lake import catalog
from pulse_pipelines.lake.names import SEPARATOR

PATH = "/v1/namespaces/{namespace}"
_ABOUT = {
    "comment": "Datasets and their rollups; only Pulse writes them",
}


def _list(asked: Asked) -> Response:
    parent = asked.query.get("parent", "")
    found = catalog.namespaces(tuple(parent.split(SEPARATOR)) if parent else ())
    return json_response({"namespaces": found})


def _load(asked: Asked) -> Response:
    catalog.check_namespace(asked.namespace)
    return json_response({"namespace": asked.namespace, "properties": _ABOUT})


def _exists(asked: Asked) -> Response:
    catalog.check_namespace(asked.namespace)
    return Response(status_code=204)


routes = [
    endpoint("GET", "/v1/namespaces", KeyScope.LAKE_READ, _list),
    endpoint("GET", PATH, KeyScope.LAKE_READ, _load),
    endpoint("HEAD", PATH, KeyScope.LAKE_READ, _exists),
]
