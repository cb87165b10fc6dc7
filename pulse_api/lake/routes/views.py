"""Views of the tenant's own: list, create, load, replace, rename, drop."""

from collections.abc import Callable
from functools import partial

from starlette.responses import Response

from pulse_api.lake.answers import names, view_of
from pulse_api.lake.routes.writes import nothing, renamed
from pulse_api.lake.routing import CatalogRequest, endpoint, text
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.lake import catalog, lifecycle, views
from pulse_pipelines.lake.catalog import Kind
from pulse_pipelines.lake.metadata import Metadata
from pulse_pipelines.lake.requests import Repeated
from pulse_pipelines.lake.table_commits import Name

LIST = "/v1/namespaces/{namespace}/views"
PATH = LIST + "/{view}"


def _load(request: CatalogRequest) -> Response:
    return view_of(views.load(request.caller.tenant, request.name))


def _exists(request: CatalogRequest) -> Response:
    catalog.location(request.caller.tenant, request.namespace, request.name.name, Kind.VIEW)
    return Response(status_code=204)


def _create(request: CatalogRequest) -> Response:
    tenant, body = request.caller.tenant, request.json()
    name = Name(request.namespace, text(body, "name"))
    return _now(request, name, lambda: views.create(tenant, name, body, request.once))


def _register(request: CatalogRequest) -> Response:
    tenant, body = request.caller.tenant, request.json()
    name, at = Name(request.namespace, text(body, "name")), text(body, "metadata-location")
    return _now(request, name, lambda: lifecycle.register(tenant, name, Kind.VIEW, at, request.once))


def _replace(request: CatalogRequest) -> Response:
    tenant, body, name = request.caller.tenant, request.json(), request.name
    return _now(request, name, lambda: views.change(tenant, name, body, request.once))


def _now(request: CatalogRequest, name: Name, work: Callable[[], Metadata]) -> Response:
    try:
        return view_of(work())
    except Repeated:
        return view_of(views.load(request.caller.tenant, name))


def _drop(request: CatalogRequest) -> Response:
    return nothing(lambda: lifecycle.drop(request.caller.tenant, request.name, Kind.VIEW, request.once))


routes = [
    endpoint("GET", LIST, KeyScope.LAKE_READ, partial(names, kind=Kind.VIEW)),
    endpoint("POST", LIST, KeyScope.LAKE_WRITE, _create, reads_back=True),
    endpoint(
        "POST", "/v1/namespaces/{namespace}/register-view", KeyScope.LAKE_WRITE, _register, reads_back=True
    ),
    endpoint("GET", PATH, KeyScope.LAKE_READ, _load),
    endpoint("HEAD", PATH, KeyScope.LAKE_READ, _exists),
    endpoint("POST", PATH, KeyScope.LAKE_WRITE, _replace, reads_back=True),
    endpoint("DELETE", PATH, KeyScope.LAKE_WRITE, _drop),
    endpoint("POST", "/v1/views/rename", KeyScope.LAKE_WRITE, partial(renamed, kind=Kind.VIEW)),
]
