"""Namespaces: `events`, which holds the tenant's datasets and their rollups, and those of its own."""

from contextlib import suppress
from typing import Any

from starlette.responses import Response

from pulse_api.lake.errors import refused
from pulse_api.lake.routes.writes import nothing
from pulse_api.lake.routing import CatalogRequest, endpoint, json_response, levels, strings
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.lake import catalog, namespaces
from pulse_pipelines.lake.names import SEPARATOR
from pulse_pipelines.lake.requests import Repeated

LIST = "/v1/namespaces"
PATH = LIST + "/{namespace}"


def _list(request: CatalogRequest) -> Response:
    parent = request.query.get("parent", "")
    children = catalog.namespaces(request.caller.tenant, tuple(parent.split(SEPARATOR)) if parent else ())
    return json_response({"namespaces": children})


def _load(request: CatalogRequest) -> Response:
    properties = catalog.properties(request.caller.tenant, request.namespace)
    return json_response({"namespace": request.namespace, "properties": properties})


def _exists(request: CatalogRequest) -> Response:
    catalog.properties(request.caller.tenant, request.namespace)
    return Response(status_code=204)


def _create(request: CatalogRequest) -> Response:
    tenant, body = request.caller.tenant, request.json()
    namespace, properties = levels(body.get("namespace")), strings(body, "properties")
    with suppress(Repeated):  # answered as the first time: what they are by now is for keys that read
        namespaces.create(tenant, namespace, properties, request.once)
    return json_response({"namespace": namespace, "properties": properties})


def _drop(request: CatalogRequest) -> Response:
    return nothing(lambda: namespaces.drop(request.caller.tenant, request.namespace, request.once))


def _update(request: CatalogRequest) -> Response:
    body = request.json()
    updates, removals = strings(body, "updates"), _removals(body)
    if repeated := set(updates) & set(removals):
        raise refused(422, f"a property is set and removed: {min(repeated)[:100]}")
    try:
        changed = namespaces.update(request.caller.tenant, request.namespace, updates, removals, request.once)
    except Repeated:
        changed = namespaces.Changed(list(updates), removals, ())
    return json_response(vars(changed))


def _removals(body: dict[str, Any]) -> list[str]:
    names = body.get("removals") or []
    if not isinstance(names, list) or not all(isinstance(value, str) for value in names):
        raise refused(400, "removals is a list of names")
    return names


routes = [
    endpoint("GET", LIST, KeyScope.LAKE_READ, _list),
    endpoint("GET", PATH, KeyScope.LAKE_READ, _load),
    endpoint("HEAD", PATH, KeyScope.LAKE_READ, _exists),
    endpoint("POST", LIST, KeyScope.LAKE_WRITE, _create),
    endpoint("DELETE", PATH, KeyScope.LAKE_WRITE, _drop),
    endpoint("POST", PATH + "/properties", KeyScope.LAKE_WRITE, _update),
]
