"""Record of questions in Postgres: inserted before a question is answered, updated afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pulse_pipelines.curated import tables
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres
from pulse_resources.settings import load_settings

MAX_LOOKS = 5
"""Most queries or calls of a model that answer one question."""
BEGIN = """
INSERT INTO questions (tenant_id, question_id, key_id, question, provider) VALUES (%s, %s, %s, %s, %s)
"""
FORGET = "DELETE FROM questions WHERE asked_at < now() - make_interval(secs => %s)"
SPENT = """
UPDATE questions SET queries = queries || %s::text[], tokens = tokens + %s WHERE question_id = %s
"""
END = "UPDATE questions SET state = %s, seconds = %s, error = %s WHERE question_id = %s"
# A question that is recorded as running for longer than one can take: its process died before it ended.
LIST = """
SELECT question_id, key_id, question, provider,
    CASE WHEN state = 'running' AND asked_at < now() - make_interval(secs => %s) THEN 'failed' ELSE state
    END AS state, queries, tokens, seconds, error, asked_at
FROM questions ORDER BY asked_at DESC LIMIT %s
"""
TOKENS = "SELECT coalesce(sum(tokens), 0)::bigint FROM questions WHERE asked_at > now() - interval '1 day'"
LANDED = """
SELECT d.slug, (SELECT max(l.landed_at) FROM landings l
    WHERE (l.tenant_id, l.dataset_id) = (%s, d.dataset_id) AND l.rows > 0)
FROM pdm_datasets d WHERE d.slug = ANY(%s)
"""


@dataclass(frozen=True)
class Question:
    """A recorded question."""

    question_id: str
    key_id: str | None
    """Id of the API key; None: an operator used the command line."""
    question: str
    provider: str
    state: str
    """running, answered, refused or failed."""
    queries: Sequence[str]
    """Ids of the queries that were run for it."""
    tokens: int
    """Tokens that a model read and wrote for it."""
    seconds: float | None
    error: str | None
    asked_at: datetime


def begin(tenant: Tenant, question_id: str, key_id: str | None, question: str, provider: str) -> None:
    """Record a question, and delete expired records."""
    keep = load_settings().sql.keep_days * 86_400
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        connection.execute(FORGET, [keep])
        connection.execute(BEGIN, [tenant.tenant_id, question_id, key_id, question, provider])


def spent(tenant: Tenant, question_id: str, queries: Sequence[str] = (), tokens: int = 0) -> None:
    """Record queries and tokens that were used for a question."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        connection.execute(SPENT, [list(queries), tokens, question_id])


def end(tenant: Tenant, question_id: str, state: str, seconds: float, error: str | None = None) -> None:
    """Record the result of a question."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        connection.execute(END, [state, seconds, error, question_id])


def questions(tenant: Tenant, limit: int) -> list[Question]:
    """List the tenant's questions, the latest first."""
    settings = load_settings()
    once = settings.ask.seconds + settings.sql.seconds + settings.api.wait_seconds
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return postgres.select(connection, Question, LIST, [MAX_LOOKS * once + 60, limit])


def tokens_of_a_day(tenant: Tenant) -> int:
    """Tokens that models used for the tenant in the last 24 hours."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        (tokens,) = connection.execute(TOKENS).fetchone() or (0,)
        return int(tokens)


def freshness(tenant: Tenant, names: Sequence[str]) -> dict[str, datetime | None]:
    """When events last landed in some datasets, or in what some rollups were computed from; None: never.

    Tables of the tenant's own, `namespace.table`, are left out.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        landed = dict(connection.execute(LANDED, [tenant.tenant_id, list(names)]).fetchall())
    rollups = [name for name in names if name not in landed and "." not in name]
    return landed | (tables.landed(tenant, rollups) if rollups else {})
