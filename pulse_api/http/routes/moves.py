"""/v1/datasets/{slug}/moves: moves of a dataset to a newer schema version that need a run."""

from datetime import datetime

from pydantic import BaseModel, Field

from pulse_api.http.auth import Reader
from pulse_api.http.models import DatasetSlug
from pulse_api.http.problems import documented
from pulse_api.http.routing import resource
from pulse_pipelines import moves
from pulse_pipelines.moves import Move, MoveState
from pulse_pipelines.registry import find_dataset
from pulse_resources.errors import NotFound

router = resource("datasets", "/v1/datasets")


class MoveInfo(BaseModel):
    """A move that rewrites data files; until it is done, the dataset is unchanged."""

    move_id: str
    dataset: str
    from_schema_uri: str
    schema_uri: str = Field(description="The schema version that the dataset moves to.")
    state: MoveState
    attempt: int = Field(description="A run that died or failed is followed by another attempt.")
    files: int | None = Field(description="Data files to rewrite; null: not known yet.")
    files_written: int
    error: str | None = Field(description="Why it failed, or why the attempt before it failed.")
    asked_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


class MoveList(BaseModel):
    moves: list[MoveInfo]


def described(move: Move) -> MoveInfo:
    """A move as the API shows it."""
    return MoveInfo(
        move_id=move.move_id,
        dataset=move.slug,
        from_schema_uri=move.from_uri,
        schema_uri=move.schema_uri,
        state=MoveState(move.state),
        attempt=move.attempt,
        files=move.files,
        files_written=move.files_done,
        error=move.error,
        asked_at=move.asked_at,
        started_at=move.started_at,
        ended_at=move.ended_at,
    )


def location(move: Move) -> str:
    """Path of a move's own endpoint."""
    return f"/v1/datasets/{move.slug}/moves/{move.move_id}"


@router.get("/{slug}/moves", summary="List moves", responses=documented(401, 403, 404, 422, 429, 503))
def list_moves(principal: Reader, slug: DatasetSlug) -> MoveList:
    """Moves of the dataset that need a run, the latest first, at most 100."""
    find_dataset(principal.tenant, slug)
    return MoveList(moves=[described(move) for move in moves.of_dataset(principal.tenant, slug)])


@router.get(
    "/{slug}/moves/{move_id}", summary="Get a move", responses=documented(401, 403, 404, 422, 429, 503)
)
def get_move(principal: Reader, slug: DatasetSlug, move_id: str) -> MoveInfo:
    """One move, with its progress and its outcome."""
    move = moves.find(principal.tenant, move_id)
    if move.slug != slug:
        raise NotFound("no such move", tenant=principal.tenant.slug, dataset=slug, move=move_id)
    return described(move)
