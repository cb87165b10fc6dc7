"""Catalog of the MCP server: tools with their schemas and examples, and prompts for common questions."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from pulse_api.mcp import arguments, lookups, queries
from pulse_api.mcp.arguments import Arguments
from pulse_api.mcp.session import Answer, Session


@dataclass(frozen=True)
class Tool:
    name: str
    description: str
    example: Mapping[str, Any]
    arguments: type[Arguments]
    call: Callable[[Session, Any], Awaitable[Answer]]

    def full_description(self) -> str:
        """The description with an example of the arguments."""
        return f"{self.description} Example: {orjson.dumps(self.example).decode()}"


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "list_datasets",
            "List the tenant's datasets: what they are about, their rollups' tables, and when events landed "
            "last. Give a page's `next` for the page after it.",
            {"limit": 50},
            arguments.OfAll,
            lookups.list_datasets,
        ),
        Tool(
            "describe_dataset",
            "Say what a dataset's columns mean: types, units, which are measures, other words for them, the "
            "schema versions, checks, rollups, limits and a few rows. Call it before query or measure.",
            {"dataset": "orders"},
            arguments.DescribeArguments,
            lookups.describe_dataset,
        ),
        Tool(
            "query",
            "Run one SELECT in DuckDB's dialect over datasets by their slugs, and rollups by their tables. "
            "`timestamp` is when an event happened, in UTC. Sort the rows, and give a page's `next` for the "
            "page after it.",
            {
                "sql": "SELECT country, count(*) AS orders FROM orders GROUP BY ALL ORDER BY 2 DESC",
                "limit": 20,
            },
            arguments.QueryArguments,
            queries.query,
        ),
        Tool(
            "measure",
            "Compute measures of a dataset by dimensions and time, without writing SQL; entities count in "
            "their newest versions. Give a page's `next` for the page after it.",
            {
                "dataset": "orders",
                "measures": [{"aggregation": "sum", "column": "amount"}],
                "by": ["country"],
                "grain": "month",
            },
            arguments.MeasureArguments,
            queries.measure,
        ),
        Tool(
            "explain",
            "Show the plan of a SELECT without running it.",
            {"sql": "SELECT count(*) FROM orders WHERE country = 'DE'"},
            arguments.ExplainArguments,
            queries.explain,
        ),
        Tool(
            "dead_letters",
            "List events that could not land, with the reason, and how many are open by reason.",
            {"dataset": "orders", "limit": 20},
            arguments.DeadLetterArguments,
            lookups.letters,
        ),
        Tool(
            "freshness",
            "Say when events landed last in a dataset, or in all, and at which snapshot they are.",
            {"dataset": "orders"},
            arguments.OfSome,
            lookups.freshness,
        ),
        Tool(
            "trace_event",
            "Say what became of one event: where it landed, or why it did not.",
            {"event_id": "o-1"},
            arguments.TraceArguments,
            lookups.trace_event,
        ),
    )
}


@dataclass(frozen=True)
class Prompt:
    name: str
    description: str
    takes: Mapping[str, str]
    text: str


PROMPTS = {
    prompt.name: prompt
    for prompt in (
        Prompt(
            "explore_dataset",
            "What is in a dataset, and what can be asked of it",
            {"dataset": "Slug of the dataset"},
            "Describe the dataset {dataset} with describe_dataset, then say in plain words what its "
            "rows are, which measures and dimensions it has, how fresh it is, and three questions to ask it.",
        ),
        Prompt(
            "trend",
            "How a measure went over time",
            {"dataset": "Slug of the dataset", "measure": "What to measure"},
            "Show how {measure} in the dataset {dataset} went by day over the last 30 days: call "
            "describe_dataset, then measure with the grain day. Name the snapshot, and how fresh it is.",
        ),
        Prompt(
            "why_missing",
            "Why an event is not in its table",
            {"event_id": "Id of the event"},
            "Find out what became of the event {event_id}: call trace_event; if it is a dead letter, say its "
            "reason and what its sender has to change.",
        ),
        Prompt(
            "health",
            "Whether the data is fresh, and what could not land",
            {},
            "Call freshness and dead_letters. Say which datasets are behind, how many dead letters are open "
            "by reason, and what to do about the most frequent one.",
        ),
    )
}
