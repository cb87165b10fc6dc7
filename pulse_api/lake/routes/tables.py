"""Tables: names, metadata with credentials for the files, and the credentials alone."""

from functools import partial

from starlette.responses import Response

from pulse_api.lake.answers import credential, load_result, names
from pulse_api.lake.errors import refused
from pulse_api.lake.routing import CatalogRequest, endpoint, json_response
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.lake import catalog, tables
from pulse_pipelines.lake.catalog import Kind

LIST = "/v1/namespaces/{namespace}/tables"
PATH = LIST + "/{table}"


def _load(request: CatalogRequest) -> Response:
    """The specification's LoadTableResult; 304 where the client's ETag is still current."""
    snapshots = request.query.get("snapshots", "all")
    if snapshots not in ("all", "refs"):
        raise refused(400, "snapshots is all or refs")
    table = tables.load(request.caller.tenant, request.namespace, request.table, may_write=request.may_write)
    etag = table.etag if snapshots == "all" else f'{table.etag[:-1]}-refs"'
    if etag in (tag.strip() for tag in request.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers={"ETag": etag})
    metadata = table.metadata.content if snapshots == "all" else table.metadata.refs_only()
    return load_result(table, metadata, etag)


def _credentials(request: CatalogRequest) -> Response:
    """Credentials for the table's files, the same as with the table, until they are about to expire."""
    table = tables.load(request.caller.tenant, request.namespace, request.table, may_write=request.may_write)
    return json_response({"storage-credentials": [credential(table)]}, Cache_Control="no-store")


def _exists(request: CatalogRequest) -> Response:
    catalog.location(request.caller.tenant, request.namespace, request.table)
    return Response(status_code=204)


def _metrics(request: CatalogRequest) -> Response:
    """Scan reports of clients, which are not used."""
    request.json()
    return Response(status_code=204)


routes = [
    endpoint("GET", LIST, KeyScope.LAKE_READ, partial(names, kind=Kind.TABLE)),
    endpoint("GET", PATH, KeyScope.LAKE_READ, _load),
    endpoint("HEAD", PATH, KeyScope.LAKE_READ, _exists),
    endpoint("GET", PATH + "/credentials", KeyScope.LAKE_READ, _credentials),
    endpoint("POST", PATH + "/metrics", KeyScope.LAKE_READ, _metrics),
]
