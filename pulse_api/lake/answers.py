"""Responses about tables and views, in the forms of the Iceberg REST specification."""

import base64
import binascii

import orjson
from starlette.responses import Response

from pulse_api.lake.errors import refused
from pulse_api.lake.routing import CatalogRequest, json_response
from pulse_pipelines.lake import catalog, tables
from pulse_pipelines.lake.catalog import Kind
from pulse_pipelines.lake.metadata import Metadata
from pulse_pipelines.lake.table_commits import Name
from pulse_pipelines.lake.tables import Loaded

MOST = 1_000
"""Maximum names on a page."""


def load_result(table: Loaded, metadata: bytes, etag: str | None = None) -> Response:
    """A LoadTableResult. The metadata is copied as bytes, unparsed: it is most of the response."""
    config, keys = orjson.dumps(dict(table.config)), orjson.dumps([credential(table)])
    content = b'{%b,"config":%b,"storage-credentials":%b}' % (
        _document(table.metadata.at, metadata),
        config,
        keys,
    )
    return _json(content, etag)


def table_of(request: CatalogRequest, name: Name, metadata: Metadata) -> Response:
    """A newly created table, with credentials for its files."""
    loaded = tables.opened(
        request.caller.tenant, name.namespace, name.name, metadata, may_write=request.may_write
    )
    return load_result(loaded, metadata.content, loaded.etag)


def committed(request: CatalogRequest, name: Name, metadata: Metadata) -> Response:
    """A table's metadata after a commit, without credentials: the client has them already."""
    loaded = tables.opened(
        request.caller.tenant, name.namespace, name.name, metadata, may_write=request.may_write
    )
    return _json(b"{%b}" % _document(metadata.at, metadata.content), loaded.etag)


def view_of(metadata: Metadata) -> Response:
    """A view, without credentials: it has no files of its own."""
    return _json(b'{%b,"config":{}}' % _document(metadata.at, metadata.content))


def credential(loaded: Loaded) -> dict[str, object]:
    """The specification's StorageCredential."""
    return {"prefix": loaded.metadata.location.removesuffix("/") + "/", "config": dict(loaded.config)}


def _document(at: str, metadata: bytes) -> bytes:
    return b'"metadata-location":%b,"metadata":%b' % (orjson.dumps(at), metadata)


def _json(content: bytes, etag: str | None = None) -> Response:
    return Response(content, headers={"ETag": etag} if etag else None, media_type="application/json")


def names(request: CatalogRequest, kind: Kind) -> Response:
    """Names of tables or views in a namespace: all of them, or the requested page."""
    size, after = request.query.get("pageSize"), _after(request)
    paged = size is not None or after is not None
    most = _size(size) if paged else catalog.ALL
    listed = catalog.tables(request.caller.tenant, request.namespace, after or "", most + 1, kind)
    identifiers = [{"namespace": request.namespace, "name": name} for name in listed[:most]]
    more = base64.urlsafe_b64encode(listed[most - 1].encode()).decode() if len(listed) > most else None
    return json_response({"identifiers": identifiers, "next-page-token": more})


def _after(request: CatalogRequest) -> str | None:
    """The last name of the previous page; an empty token requests the first page."""
    token = request.query.get("pageToken")
    if not token:
        return token
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise refused(400, "pageToken is not one of this catalog") from None


def _size(text: str | None) -> int:
    if text is None:
        return MOST
    if not (text.isascii() and text.isdigit() and int(text[:9]) > 0):
        raise refused(400, "pageSize must be a positive number")
    return min(int(text[:9]), MOST)
