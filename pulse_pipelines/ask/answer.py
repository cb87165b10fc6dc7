"""Answering a question: from its text to rows, with everything needed to check the answer."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from pulse_pipelines.ask import meaning, plan, read, record
from pulse_pipelines.ask.meaning import Meaning
from pulse_pipelines.ask.read import NotUnderstood, QueryResult, Run
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.sql import audit
from pulse_resources.errors import PulseError, QuotaExceeded

MAX_QUESTION = 2_000
GRAMMAR = "grammar"


@dataclass(frozen=True)
class Understood:
    """A query that answers a question, with its result."""

    sql: str
    interpretation: str
    """The interpretation of the question, in words."""
    result: QueryResult
    tries: int = 1


class Provider(Protocol):
    """Generates queries from questions."""

    @property
    def name(self) -> str: ...
    async def understand(
        self, meanings: Sequence[Meaning], question: str, now: datetime, run: Run, budget: "Budget"
    ) -> Understood: ...


@dataclass(frozen=True)
class Budget:
    """A tenant's token budget for models."""

    tenant: Tenant
    question_id: str
    tokens_per_day: int
    """Tokens in 24 hours; 0: no limit."""

    async def check(self) -> None:
        """Raise QuotaExceeded if the tokens of the last 24 hours are used up."""
        if self.tokens_per_day:
            used = await asyncio.to_thread(record.tokens_of_a_day, self.tenant)
            if used >= self.tokens_per_day:
                raise QuotaExceeded(
                    f"models took {used:,} of {self.tokens_per_day:,} tokens for the tenant in 24 hours",
                    fix="Ask later, ask the grammar, or send SQL",
                )

    async def take(self, tokens: int) -> None:
        """Record tokens that a model used."""
        await asyncio.to_thread(record.spent, self.tenant, self.question_id, (), tokens)


class Grammar:
    """The provider without a model: answers only questions that parse completely."""

    name = GRAMMAR

    async def understand(
        self, meanings: Sequence[Meaning], question: str, now: datetime, run: Run, budget: Budget
    ) -> Understood:
        """Parse and run a question. Raises NotUnderstood."""
        chosen = await read.read(meanings, question, now, run)
        sql = read.sql_of(chosen)
        return Understood(sql, plan.in_words(chosen), await run(sql))


@dataclass(frozen=True)
class Answer:
    question_id: str
    question: str
    provider: str
    understood: str
    sql: str
    query_id: str
    snapshots: Mapping[str, int | None]
    freshness: Mapping[str, datetime | None]
    """Per slug the time at which events landed last."""
    columns: Sequence[Mapping[str, Any]]
    rows: Sequence[Mapping[str, Any]]
    tries: int


async def answer(
    tenant: Tenant,
    question: str,
    provider: Provider,
    run: Run,
    *,
    key_id: str | None = None,
    tokens_per_day: int = 0,
) -> Answer:
    """Answer a question over a tenant's datasets, and record it.

    Args:
        run: runs SQL as this tenant.
        key_id: id of the API key; None: the command line.

    Raises:
        NotUnderstood: the question does not have exactly one meaning.
        QuotaExceeded: the tenant's token budget is used up.
        PulseError: the query failed.
    """
    began, question_id, ids = time.monotonic(), audit.new_id(), list[str]()
    stored = question.replace("\0", "\N{REPLACEMENT CHARACTER}")[:MAX_QUESTION]
    stored = stored.encode(
        "utf-8", "replace"
    ).decode()  # a command line may have bytes that are not valid UTF-8
    await asyncio.to_thread(record.begin, tenant, question_id, key_id, stored, provider.name)

    async def recorded(sql: str) -> QueryResult:
        result = await run(sql)
        ids.append(result.query_id)
        return result

    state, error = "failed", None
    try:
        meanings = await asyncio.to_thread(meaning.of_tenant, tenant)
        budget = Budget(tenant, question_id, tokens_per_day)
        reading = await provider.understand(meanings, stored, datetime.now(UTC), recorded, budget)
        fresh = await asyncio.to_thread(record.freshness, tenant, list(reading.result.snapshots))
        state = "answered"
    except asyncio.CancelledError:
        error = "whoever asked has left before the answer"
        raise
    except NotUnderstood as refused:
        state, error = "refused", refused.message
        raise
    except PulseError as failed:
        error = str(failed)[:2_000]
        raise
    finally:
        await asyncio.to_thread(record.spent, tenant, question_id, ids)
        await asyncio.to_thread(record.end, tenant, question_id, state, time.monotonic() - began, error)
    result = reading.result
    return Answer(
        question_id,
        stored,
        provider.name,
        reading.interpretation,
        reading.sql,
        result.query_id,
        result.snapshots,
        fresh,
        result.columns,
        result.rows,
        reading.tries,
    )
