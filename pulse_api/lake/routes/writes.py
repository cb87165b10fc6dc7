"""Tables of the tenant's own: create, commit (to many at once), register, rename, drop."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from starlette.responses import Response

from pulse_api.lake.answers import committed, table_of
from pulse_api.lake.errors import refused
from pulse_api.lake.routes.tables import LIST, PATH
from pulse_api.lake.routing import CatalogRequest, endpoint, flag, json_response, named, text
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.lake import catalog, lifecycle, metadata, table_commits, tables, updates
from pulse_pipelines.lake.catalog import Kind
from pulse_pipelines.lake.metadata import Metadata
from pulse_pipelines.lake.requests import Repeated
from pulse_pipelines.lake.table_commits import Name, TableCommit

MOST = 100
"""Maximum tables of a transaction."""


def _create(request: CatalogRequest) -> Response:
    tenant, body = request.caller.tenant, request.json()
    name = Name(request.namespace, text(body, "name"))
    if flag(body, "stage-create"):
        document = table_commits.staged(tenant, name, body)
        unwritten = metadata.unwritten(document)
        loaded = tables.opened(tenant, name.namespace, name.name, unwritten, may_write=request.may_write)
        config = dict(loaded.config)
        return json_response({"metadata": document, "config": config} | _credentials(loaded))
    return table_of(
        request, name, _now(request, name, lambda: table_commits.create(tenant, name, body, request.once))
    )


def _credentials(loaded: tables.Loaded) -> dict[str, object]:
    return {
        "storage-credentials": [{"prefix": f"{loaded.metadata.location}/", "config": dict(loaded.config)}]
    }


def _now(request: CatalogRequest, name: Name, work: Callable[[], Metadata]) -> Metadata:
    """The metadata that a request produces; for a repeated request, the current metadata."""
    try:
        return work()
    except Repeated:
        tenant = request.caller.tenant
        return metadata.read(tenant, catalog.location(tenant, name.namespace, name.name))


def _register(request: CatalogRequest) -> Response:
    tenant, body = request.caller.tenant, request.json()
    name = Name(request.namespace, text(body, "name"))
    at, overwrite = text(body, "metadata-location"), flag(body, "overwrite")

    def register() -> Metadata:
        return lifecycle.register(tenant, name, Kind.TABLE, at, request.once, overwrite=overwrite)

    return table_of(request, name, _now(request, name, register))


def _commit(request: CatalogRequest) -> Response:
    name = request.name
    change = TableCommit(name, *updates.parsed(request.json()))
    tenant, once = request.caller.tenant, request.once
    metadata = _now(request, name, lambda: table_commits.change(tenant, [change], once)[0])
    return committed(request, name, metadata)


def _transaction(request: CatalogRequest) -> Response:
    documents = request.json().get("table-changes")
    if not isinstance(documents, list) or not documents or len(documents) > MOST:
        raise refused(400, f"table-changes is a list of 1 to {MOST} commits")
    changes = []
    for document in documents:
        if not isinstance(document, dict):
            raise refused(400, "a commit is an object")
        changes.append(TableCommit(named(document, "identifier"), *updates.parsed(document)))
    updates.check_few(sum(len(change.updates) for change in changes))
    return nothing(lambda: table_commits.change(request.caller.tenant, changes, request.once))


def _drop(request: CatalogRequest) -> Response:
    purge = request.query.get("purgeRequested", "false").lower() == "true"
    return nothing(
        lambda: lifecycle.drop(request.caller.tenant, request.name, Kind.TABLE, request.once, purge=purge)
    )


def renamed(request: CatalogRequest, kind: Kind) -> Response:
    """Rename a table or a view as the body says."""
    body = request.json()
    old, new = named(body, "source"), named(body, "destination")
    return nothing(lambda: lifecycle.rename(request.caller.tenant, old, new, kind, request.once))


def nothing(work: Callable[[], object]) -> Response:
    """204 after the work is done, or was done by an earlier request with the same idempotency key."""
    with suppress(Repeated):
        work()
    return Response(status_code=204)


routes = [
    endpoint("POST", LIST, KeyScope.LAKE_WRITE, _create, reads_back=True),
    endpoint("POST", "/v1/namespaces/{namespace}/register", KeyScope.LAKE_WRITE, _register, reads_back=True),
    endpoint("POST", PATH, KeyScope.LAKE_WRITE, _commit, reads_back=True),
    endpoint("DELETE", PATH, KeyScope.LAKE_WRITE, _drop),
    endpoint("POST", "/v1/tables/rename", KeyScope.LAKE_WRITE, partial(renamed, kind=Kind.TABLE)),
    endpoint("POST", "/v1/transactions/commit", KeyScope.LAKE_WRITE, _transaction),
]
