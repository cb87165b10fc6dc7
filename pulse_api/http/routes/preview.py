"""/v1/datasets/{slug}/preview and /snapshots: rows of a dataset, now or at an earlier time."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import BaseModel, Field

from pulse_api.http.app_state import Kind, app_state
from pulse_api.http.auth import Reader
from pulse_api.http.models import DatasetSlug, Moment, SnapshotId, SubsetOf
from pulse_api.http.negotiation import chosen
from pulse_api.http.openapi import OPEN_OBJECT
from pulse_api.http.problems import documented
from pulse_api.http.routing import resource
from pulse_pipelines.domain.requests import MAX_ROWS, SHOWN_SNAPSHOTS
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.query import snapshots as history
from pulse_pipelines.query.formats import ARROW, CSV, FOR_SPREADSHEETS, FORMATS, JSON, SPREADSHEET
from pulse_pipelines.query.preview import preview as read_preview

router = resource("preview", "/v1/datasets/{slug}", Kind.PREVIEW)

DEFAULT_LIMIT = 100
MAX_SNAPSHOTS = 10_000

ROWS: dict[str, Any] = {
    "type": "object",
    "required": ["rows"],
    "properties": {"rows": {"type": "array", "items": OPEN_OBJECT}},
}
_TEXT = "A header, then a line per row (RFC 4180); nested values are JSON text."
ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The rows, the latest event first.",
        "content": {
            JSON: {"schema": ROWS},
            CSV: {"schema": {"type": "string", "description": _TEXT}},
            SPREADSHEET: {"schema": {"type": "string", "description": FOR_SPREADSHEETS}},
            ARROW: {"schema": {"type": "string", "format": "binary", "description": "Arrow IPC stream."}},
        },
    }
}


class SnapshotInfo(BaseModel):
    snapshot_id: SnapshotId
    parent_id: SnapshotId | None
    committed_at: datetime
    operation: str = Field(description="append, overwrite, replace or delete.")
    added_rows: int
    total_rows: int
    batch_id: str | None = Field(description="Id of the batch that landed it; null: upkeep wrote it.")
    schema_id: int | None


class SnapshotList(BaseModel):
    snapshots: list[SnapshotInfo]


@router.get(
    "/preview",
    summary="Preview a dataset's newest rows",
    response_class=Response,
    responses=ANSWER | documented(401, 403, 404, 406, 422, 429, 503),
)
async def preview_rows(
    request: Request,
    principal: Reader,
    slug: DatasetSlug,
    limit: Annotated[int, Query(ge=1, le=MAX_ROWS, description="Maximum number of rows.")] = DEFAULT_LIMIT,
    start: Annotated[Moment | None, Query(alias="from", description="Events at this time or later.")] = None,
    end: Annotated[Moment | None, Query(alias="to", description="Events before this time.")] = None,
    columns: Annotated[
        str | None,
        Query(
            pattern=r"^[A-Za-z_][A-Za-z0-9_]*(,[A-Za-z_][A-Za-z0-9_]*)*$",
            description="Columns of the table, separated by commas; all by default.",
            examples=["timestamp,id"],
        ),
    ] = None,
    snapshot_id: Annotated[
        SnapshotId | None, Query(description="Read the table as of this snapshot.")
    ] = None,
    as_of: Annotated[
        Moment | None, Query(description="Read the table as of this time; not together with `snapshot_id`.")
    ] = None,
    subset: SubsetOf = None,
) -> Response:
    """The newest rows by timestamp, as JSON, CSV or an Arrow stream by the header Accept.

    A slug that only another tenant has is not found. Before its first snapshot a dataset has no rows. One
    preview has a limit of time and of memory: 503 and 422 say which was reached.
    """
    media_type = chosen(request, list(FORMATS))
    selection = {
        "columns": None if columns is None else columns.split(","),
        "start": start,
        "end": end,
        "snapshot_id": snapshot_id,
        "as_of": as_of,
        "subset": subset,
    }
    content = await app_state(request).previews.run(
        read_content, media_type, principal.tenant, slug, limit, selection
    )
    return Response(content, media_type=media_type, headers={"Vary": "Accept"})


def read_content(
    media_type: str, tenant: Tenant, slug: str, limit: int, selection: Mapping[str, Any]
) -> bytes:
    """Rows of a preview, serialized as a media type."""
    return FORMATS[media_type](read_preview(tenant, slug, limit, **selection))


@router.get(
    "/snapshots",
    summary="List a dataset's snapshots",
    responses=documented(401, 403, 404, 422, 429, 503),
)
def list_snapshots(
    principal: Reader,
    slug: DatasetSlug,
    limit: Annotated[
        int, Query(ge=1, le=MAX_SNAPSHOTS, description="Maximum number of snapshots.")
    ] = SHOWN_SNAPSHOTS,
) -> SnapshotList:
    """Commits of the dataset's table, newest first; the table can be read as of each."""
    snapshots = history.snapshots(principal.tenant, slug, limit)
    return SnapshotList(snapshots=[SnapshotInfo(**vars(snapshot)) for snapshot in snapshots])
