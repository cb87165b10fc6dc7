"""Views of the tenant's own: list, create, load, replace, rename, drop."""

from collections.abc import Callable

from starlette.responses import Response

from pulse_api.lake.answers import names, view_of
from pulse_api.lake.routes.writes import nothing, renamed
from pulse_api.lake.routing import Asked, endpoint, text
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.lake import catalog, moving, views
from pulse_pipelines.lake.catalog import Kind
from pulse_pipelines.lake.metadata import Metadata
from pulse_pipelines.lake.requests import Repeated
from pulse_pipelines.lake.writing import Name

LIST = "/v1/namespaces/{namespace}/views"
PATH = LIST + "/{view}"


def _list(asked: Asked) -> Response:
    return names(asked, Kind.VIEW)


def _load(asked: Asked) -> Response:
    return view_of(views.load(asked.caller.tenant, asked.name))


def _exists(asked: Asked) -> Response:
    catalog.location(asked.caller.tenant, asked.namespace, asked.name.name, Kind.VIEW)
    return Response(status_code=204)


def _create(asked: Asked) -> Response:
    tenant, body = asked.caller.tenant, asked.json()
    name = Name(asked.namespace, text(body, "name"))
    return _now(asked, name, lambda: views.create(tenant, name, body, asked.once))


def _register(asked: Asked) -> Response:
    tenant, body = asked.caller.tenant, asked.json()
    name, at = Name(asked.namespace, text(body, "name")), text(body, "metadata-location")
    return _now(asked, name, lambda: moving.register(tenant, name, Kind.VIEW, at, asked.once))


def _replace(asked: Asked) -> Response:
    tenant, body, name = asked.caller.tenant, asked.json(), asked.name
    return _now(asked, name, lambda: views.change(tenant, name, body, asked.once))


def _now(asked: Asked, name: Name, work: Callable[[], Metadata]) -> Response:
    try:
        return view_of(work())
    except Repeated:
        return view_of(views.load(asked.caller.tenant, name))


def _drop(asked: Asked) -> Response:
    return nothing(lambda: moving.drop(asked.caller.tenant, asked.name, Kind.VIEW, asked.once))


def _rename(asked: Asked) -> Response:
    return renamed(asked, Kind.VIEW)


routes = [
    endpoint("GET", LIST, KeyScope.LAKE_READ, _list),
    endpoint("POST", LIST, KeyScope.LAKE_WRITE, _create, reads_back=True),
    endpoint(
        "POST", "/v1/namespaces/{namespace}/register-view", KeyScope.LAKE_WRITE, _register, reads_back=True
    ),
    endpoint("GET", PATH, KeyScope.LAKE_READ, _load),
    endpoint("HEAD", PATH, KeyScope.LAKE_READ, _exists),
    endpoint("POST", PATH, KeyScope.LAKE_WRITE, _replace, reads_back=True),
    endpoint("DELETE", PATH, KeyScope.LAKE_WRITE, _drop),
    endpoint("POST", "/v1/views/rename", KeyScope.LAKE_WRITE, _rename),
]
