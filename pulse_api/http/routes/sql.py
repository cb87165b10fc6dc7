"""/v1/sql: queries over the tenant's tables: run, list, cancel."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import Path, Query, Request, Response
from pydantic import BaseModel, Field, StringConstraints
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from pulse_api.http.app_state import AppState, Kind, app_state
from pulse_api.http.auth import LakeReader
from pulse_api.http.collect.body_memory import BodyHolding
from pulse_api.http.disconnects import unless_disconnected
from pulse_api.http.models import Body, Moment, SnapshotId
from pulse_api.http.negotiation import chosen
from pulse_api.http.openapi import OPEN_OBJECT
from pulse_api.http.problems import documented
from pulse_api.http.routing import resource
from pulse_pipelines.lake.names import LONGEST
from pulse_pipelines.query.formats import ARROW, CSV, FOR_SPREADSHEETS, JSON, PARQUET, SPREADSHEET
from pulse_pipelines.sql import audit
from pulse_pipelines.sql.encoders import ENCODERS
from pulse_pipelines.sql.gate import MAX_CHARACTERS
from pulse_pipelines.sql.pinned import Travel
from pulse_pipelines.sql.run import QueryRequest, Result
from pulse_resources.errors import UserError

router = resource("sql", "/v1/sql", Kind.SQL)
records = resource("sql", "/v1/sql")

MAX_LISTED = 1_000
CORRECT = "Correct the query; DESCRIBE <table> lists the columns of a table, docs/sql.md the functions"
QUERY_ID = "Pulse-Query-Id"
ID_PATTERN = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$"
"""Not `.` or `..`: a client would take them for parts of the path."""
QueryId = Annotated[str, StringConstraints(pattern=ID_PATTERN)]
MOST_SNAPSHOTS = 1_000
"""Snapshots that a query names."""
TableName = Annotated[str, StringConstraints(min_length=1, max_length=2 * LONGEST + 1)]

_COLUMN = {
    "type": "object",
    "required": ["name", "type"],
    "properties": {
        "name": {"type": "string"},
        "type": {"type": "string", "description": "Arrow's name of it."},
    },
}
RESULT: dict[str, Any] = {
    "type": "object",
    "required": ["query_id", "snapshots", "columns", "rows"],
    "properties": {
        "query_id": {"type": "string"},
        "snapshots": {
            "type": "object",
            "description": "What each table was read at, by its name; null: it had no rows yet.",
            "additionalProperties": {"type": ["string", "null"]},
        },
        "columns": {"type": "array", "items": _COLUMN},
        "rows": {"type": "array", "items": OPEN_OBJECT},
    },
}
ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The rows.",
        "headers": {QUERY_ID: {"schema": {"type": "string"}, "description": "Of this query."}},
        "content": {
            JSON: {"schema": RESULT},
            CSV: {"schema": {"type": "string", "description": "A header, then a line per row (RFC 4180)."}},
            SPREADSHEET: {"schema": {"type": "string", "description": FOR_SPREADSHEETS}},
            ARROW: {"schema": {"type": "string", "format": "binary", "description": "Arrow IPC stream."}},
            PARQUET: {"schema": {"type": "string", "format": "binary", "description": "A Parquet file."}},
        },
    }
}


class NewQuery(Body):
    sql: str = Field(
        min_length=1,
        max_length=MAX_CHARACTERS,
        description="One SELECT, in DuckDB's dialect, or EXPLAIN before it. Datasets are named by their "
        "slugs, tables of the tenant's own namespace.table.",
        examples=["SELECT country, count(*) AS orders FROM orders GROUP BY ALL"],
    )
    snapshots: dict[TableName, SnapshotId] = Field(
        default_factory=dict,
        max_length=MOST_SNAPSHOTS,
        description="Snapshots to read tables as of, by the names in the query.",
    )
    as_of: Moment | None = Field(default=None, description="Read all other tables as of this time.")
    query_id: QueryId | None = Field(
        default=None,
        description="A new id by which the query can be cancelled; by default Pulse chooses one.",
    )


class QueryInfo(BaseModel):
    query_id: str
    key_id: str | None = Field(description="Id of the key that was used; null: an operator's command line.")
    sql: str
    state: str = Field(description="running, done, failed or cancelled.")
    snapshots: dict[str, SnapshotId | None] = Field(
        description="What it reads, by name; null: a table without rows."
    )
    rows: int | None
    bytes: int | None = Field(description="Bytes of the result as it was sent.")
    seconds: float | None
    error: str | None
    asked_at: datetime


class QueryList(BaseModel):
    queries: list[QueryInfo]


class _HeldResponse(Response):
    """Response whose content counts as held until it is sent."""

    def __init__(self, content: bytes, holding: BodyHolding, **arguments: Any) -> None:
        super().__init__(content, **arguments)
        self._holding = holding

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._holding:
            await super().__call__(scope, receive, send)


@router.post(
    "",
    summary="Run a query",
    response_class=Response,
    responses=ANSWER | documented(400, 401, 403, 404, 406, 409, 413, 422, 429, 501, 503),
)
async def run_query(request: Request, principal: LakeReader, body: NewQuery) -> Response:
    """Rows of one SELECT over the tenant's tables, as JSON, CSV, Arrow or Parquet by the header Accept.

    All of them are read as they are at one moment. A table that only another tenant has is not found. One
    query has limits of time, memory, rows and bytes: 422 says which was reached. It ends when its caller
    leaves.
    """
    state, tenant = app_state(request), principal.tenant
    query_request = QueryRequest(
        tenant=tenant,
        sql=body.sql,
        key_id=principal.key_id,
        query_id=body.query_id or audit.new_id(),
        media_type=chosen(request, list(ENCODERS)),
        travel=Travel(dict(body.snapshots), body.as_of),
    )
    with state.results.of(tenant.tenant_id) as before:
        before.add(0)  # nothing more is computed while too many result bytes wait to be fetched
    with state.queries.reserve(query_request):
        result = await unless_disconnected(request.receive, _run_query(state, query_request))
    holding = state.results.of(tenant.tenant_id)
    holding.count(len(result.content))
    headers = {"Vary": "Accept", QUERY_ID: query_request.query_id}
    return _HeldResponse(result.content, holding, media_type=query_request.media_type, headers=headers)


async def _run_query(state: AppState, query_request: QueryRequest) -> Result:
    async with state.turns[Kind.SQL].take(query_request.tenant.tenant_id):
        try:
            return await state.queries.run(query_request)
        except UserError as error:
            error.fix = error.fix or CORRECT
            raise


@records.get("", summary="List queries", responses=documented(401, 403, 422, 429, 503))
def list_queries(
    principal: LakeReader,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED, description="Maximum number of queries.")] = 100,
    running: Annotated[bool, Query(description="Only running queries.")] = False,
) -> QueryList:
    """The tenant's queries with their outcomes, the latest first."""
    recorded = audit.queries(principal.tenant, limit, running=running)
    return QueryList(queries=[QueryInfo(**vars(query)) for query in recorded])


@records.delete("/{query_id}", summary="Cancel a query", responses=documented(401, 403, 404, 422, 429, 503))
def cancel_query(
    request: Request,
    principal: LakeReader,
    query_id: Annotated[str, Path(pattern=ID_PATTERN, description="Id of the query.")],
) -> QueryInfo:
    """Cancel a query of the tenant, in whichever process it runs. One that has ended is left unchanged."""
    query = audit.cancel(principal.tenant, query_id)
    app_state(request).queries.cancel(principal.tenant.tenant_id, query_id)
    return QueryInfo(**vars(query))
