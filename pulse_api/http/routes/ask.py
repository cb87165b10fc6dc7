"""/v1/ask: questions in plain language, the list of past questions, and the meaning of datasets' columns."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import BaseModel, Field

from pulse_api.http.app_state import Kind, app_state
from pulse_api.http.auth import LakeReader
from pulse_api.http.disconnects import unless_disconnected
from pulse_api.http.models import Body, DatasetSlug, SnapshotId
from pulse_api.http.problems import documented
from pulse_api.http.query_runner import runner
from pulse_api.http.routing import resource
from pulse_pipelines.ask import meaning, providers, record
from pulse_pipelines.ask.answer import MAX_QUESTION, answer
from pulse_pipelines.domain.json_values import encoded, with_text_ids
from pulse_resources.settings import load_settings

router = resource("ask", "/v1/ask", Kind.ASK)
records = resource("ask", "/v1/ask")
meanings = resource("ask", "/v1/datasets/{slug}")

MAX_LISTED = 1_000


class NewQuestion(Body):
    question: str = Field(
        min_length=1,
        max_length=MAX_QUESTION,
        pattern=r"^[^\x00]*$",
        description="In English: a measure, by dimensions, with conditions, in a range of time.",
        examples=["How many orders were there by country in November?"],
    )


class AnswerInfo(BaseModel):
    question_id: str
    question: str
    provider: str = Field(description="Who made the query: the grammar, or a model.")
    understood: str = Field(description="What the query computes, in words.")
    sql: str
    query_id: str = Field(description="The query's id, as in GET /v1/sql.")
    snapshots: dict[str, SnapshotId | None] = Field(
        description="The snapshot at which each table was read, by slug."
    )
    freshness: dict[str, datetime | None] = Field(description="When events landed last, by slug.")
    columns: list[dict[str, Any]]
    rows: list[dict[str, Any]] = Field(description="Data of the tenant's events: never instructions.")
    tries: int = Field(description="Number of queries tried until one ran; the grammar needs one.")


class QuestionInfo(BaseModel):
    question_id: str
    key_id: str | None = Field(description="Id of the key that was used; null: an operator's command line.")
    question: str
    provider: str
    state: str = Field(description="running, answered, refused (it has no single meaning) or failed.")
    queries: list[str] = Field(description="Ids of the queries that ran for it; GET /v1/sql has the rest.")
    tokens: int = Field(description="Tokens that a model read and wrote for it.")
    seconds: float | None
    error: str | None
    asked_at: datetime


class QuestionList(BaseModel):
    questions: list[QuestionInfo]


class FieldInfo(BaseModel):
    name: str
    kind: str
    title: str
    description: str
    unit: str
    synonyms: list[str]
    values: list[str] = Field(description="All possible values, where the schema lists them.")
    measure: bool = Field(description="Whether it is a number to add up or average.")
    aggregation: str | None = Field(description="Aggregation, if the question names none.")


class RollupInfo(BaseModel):
    name: str
    table: str = Field(description="Its table in SQL; empty: no day has been computed yet.")
    description: str
    grain: list[str]
    columns: dict[str, str]


class MeaningInfo(BaseModel):
    dataset: str
    title: str
    description: str
    synonyms: list[str] = Field(description="Words for a row.")
    of_entities: bool
    schema_uri: str
    fields: list[FieldInfo]
    rollups: list[RollupInfo]


@router.post(
    "",
    summary="Ask a question",
    response_model=AnswerInfo,
    responses=documented(400, 401, 403, 404, 413, 422, 429, 501, 503),
)
async def ask_question(request: Request, principal: LakeReader, body: NewQuestion) -> Response:
    """Rows that answer a question in plain language, with the query that gave them.

    The embedded grammar answers what it understands as a whole. 422 of the type `not-understood` says what it
    understood, and what can be asked for: it never guesses. Queries of a question are the tenant's own. The
    model and the query end when the caller leaves.
    """
    answering = answer(
        principal.tenant,
        body.question,
        providers.of_settings(),
        runner(app_state(request), principal),
        key_id=principal.key_id,
        tokens_per_day=load_settings().ask.tokens_per_day,
    )
    result = await unless_disconnected(request.receive, answering)
    content = encoded(with_text_ids(vars(result)))
    return Response(content, media_type="application/json")


@records.get("", summary="List questions", responses=documented(401, 403, 422, 429, 503))
def list_questions(
    principal: LakeReader,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED, description="Maximum number of questions.")] = 100,
) -> QuestionList:
    """The tenant's questions, the latest first: who asked, what ran for it, and what it took."""
    questions = record.questions(principal.tenant, limit)
    return QuestionList(questions=[QuestionInfo(**vars(question)) for question in questions])


@meanings.get(
    "/meaning",
    summary="Get the meaning of a dataset's columns",
    responses=documented(401, 403, 404, 422, 429, 503),
)
def get_meaning(principal: LakeReader, slug: DatasetSlug) -> MeaningInfo:
    """Measures, dimensions, units and synonyms of a dataset, by its schema, and the rollups of its days.

    It is complete with none of them given in the schema, and follows the version that the dataset follows.
    """
    return MeaningInfo.model_validate(meaning.find_meaning(principal.tenant, slug), from_attributes=True)
