"""Tables: their names, their metadata with a key to their files, and that key alone."""

import base64
import binascii

import orjson
from starlette.responses import Response

from pulse_api.lake.errors import refused
from pulse_api.lake.routing import Asked, endpoint, json_response
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.lake import catalog, tables
from pulse_pipelines.lake.tables import Loaded

LIST = "/v1/namespaces/{namespace}/tables"
PATH = LIST + "/{table}"
MOST = 1_000
"""Names on a page."""


def _list(asked: Asked) -> Response:
    """All names, or pages of them where the client asks for pages."""
    size, after = asked.query.get("pageSize"), _after(asked)
    paged = size is not None or after is not None
    most = _size(size) if paged else catalog.ALL
    found = catalog.tables(asked.caller.tenant, asked.namespace, after or "", most + 1)
    names = [{"namespace": asked.namespace, "name": name} for name in found[:most]]
    more = base64.urlsafe_b64encode(found[most - 1].encode()).decode() if len(found) > most else None
    return json_response({"identifiers": names, "next-page-token": more})


def _after(asked: Asked) -> str | None:
    """The last name of the page before; an empty token asks for the first page."""
    token = asked.query.get("pageToken")
    if not token:
        return token
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise refused(400, "pageToken is none of this catalog") from None


def _size(text: str | None) -> int:
    if text is None:
        return MOST
    if not (text.isascii() and text.isdigit() and int(text[:9]) > 0):
        raise refused(400, "pageSize is a number from 1 on")
    return min(int(text[:9]), MOST)


def _load(asked: Asked) -> Response:
    """The specification's LoadTableResult; 304 to whoever has this very answer still."""
    snapshots = asked.query.get("snapshots", "all")
    if snapshots not in ("all", "refs"):
        raise refused(400, "snapshots is all or refs")
    found = tables.load(asked.caller.tenant, asked.namespace, asked.table)
    etag = found.etag if snapshots == "all" else f'{found.etag[:-1]}-refs"'
    if etag in (each.strip() for each in asked.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers={"ETag": etag})
    metadata = found.metadata.content if snapshots == "all" else found.metadata.refs_only()
    return Response(_result(found, metadata), headers={"ETag": etag}, media_type="application/json")


def _result(found: Loaded, metadata: bytes) -> bytes:
    """The metadata goes out as it was read: it is most of the answer, and nobody here has to look at it."""
    at, config = orjson.dumps(found.metadata.at), orjson.dumps(dict(found.config))
    keys = orjson.dumps([_credential(found)])
    return b'{"metadata-location":%b,"metadata":%b,"config":%b,"storage-credentials":%b}' % (
        at,
        metadata,
        config,
        keys,
    )


def _credential(found: Loaded) -> dict[str, object]:
    return {"prefix": found.metadata.location.removesuffix("/") + "/", "config": dict(found.config)}


def _credentials(asked: Asked) -> Response:
    """A key to the table's files: the same as in the table, until it grows old."""
    found = tables.load(asked.caller.tenant, asked.namespace, asked.table)
    return json_response({"storage-credentials": [_credential(found)]}, Cache_Control="no-store")


def _exists(asked: Asked) -> Response:
    catalog.location(asked.caller.tenant, asked.namespace, asked.table)
    return Response(status_code=204)


def _metrics(asked: Asked) -> Response:
    """Clients report how their scans went; nobody here asks for it."""
    asked.json()
    return Response(status_code=204)


routes = [
    endpoint("GET", LIST, KeyScope.LAKE_READ, _list),
    endpoint("GET", PATH, KeyScope.LAKE_READ, _load),
    endpoint("HEAD", PATH, KeyScope.LAKE_READ, _exists),
    endpoint("GET", PATH + "/credentials", KeyScope.LAKE_READ, _credentials),
    endpoint("POST", PATH + "/metrics", KeyScope.LAKE_READ, _metrics),
]
