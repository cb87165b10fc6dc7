"""MCP server of the SDK, with handlers that identify the caller and answer for its tenant only."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import mcp_types as types
import orjson
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from pulse_api.mcp.catalog import PROMPTS, TOOLS
from pulse_api.mcp.session import QUOTED, UNTRUSTED, Session
from pulse_pipelines import registry
from pulse_pipelines.domain import json_values
from pulse_resources.errors import NotFound, PulseError, UserError, meant

Context = ServerRequestContext[Any, Any]
SessionOf = Callable[[Context], Session]
Explain = Callable[[Context, Exception], PulseError]
MAX_TEXT = 200_000
"""Maximum bytes of an answer; a larger one is refused, with advice what to request instead."""
PAGE = 100
ELSEWHERE = "Look at list_datasets for what there is, and at dead_letters for what could not land"
MEND = "Mend what the error names: describe_dataset has a dataset's columns and what they mean"
NAMED = 20
"""Most datasets that the description of a schema names."""
INSTRUCTIONS = (
    "Pulse holds one tenant's events in tables, its datasets. Call list_datasets and describe_dataset first, "
    "then measure or query. Always tell the snapshot and when events landed last. " + UNTRUSTED
)


def server(session_of: SessionOf, explain: Explain) -> "Server[Any]":
    """Create the server.

    Args:
        session_of: gives the caller's session.
        explain: converts an exception that is not a PulseError.
    """

    async def list_tools(_: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        _cursor(params, None)
        return types.ListToolsResult(tools=[_tool(name) for name in TOOLS], cache_scope="private")

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            return _result(await _call(session_of(context), params), is_error=False)
        except Exception as error:
            explained = error if isinstance(error, PulseError) else explain(context, error)
            otherwise = ELSEWHERE if isinstance(explained, NotFound) else MEND
            content = {"error": explained.message, "fix": explained.fix or otherwise, "note": QUOTED}
            return _result(content | explained.where, is_error=True)

    async def list_resources(
        context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        datasets = defaultdict[str, list[str]](list)
        for dataset in await asyncio.to_thread(registry.list_datasets, session_of(context).tenant):
            datasets[dataset.schema_uri].append(dataset.slug)
        after = _cursor(params, "pulse://")
        page = sorted(uri for uri in datasets if uri > after)
        resources = [
            types.Resource(
                name=datasets[uri][0],
                uri=uri,
                description=f"JSON Schema of {', '.join(datasets[uri][:NAMED])}",
                mime_type="application/schema+json",
            )
            for uri in page[:PAGE]
        ]
        following = page[PAGE - 1] if len(page) > PAGE else None
        return types.ListResourcesResult(resources=resources, next_cursor=following, cache_scope="private")

    async def read_resource(
        context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        tenant = session_of(context).tenant
        for dataset in await asyncio.to_thread(registry.list_datasets, tenant):
            if dataset.schema_uri == str(params.uri):
                content = types.TextResourceContents(
                    uri=dataset.schema_uri, mime_type="application/schema+json", text=dataset.document
                )
                return types.ReadResourceResult(contents=[content], cache_scope="private")
        raise MCPError(code=types.INVALID_PARAMS, message=f"unknown schema {str(params.uri)[:200]}")

    async def list_prompts(
        _: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        _cursor(params, None)
        prompts = [
            types.Prompt(
                name=prompt.name,
                description=prompt.description,
                arguments=[
                    types.PromptArgument(name=name, description=description, required=True)
                    for name, description in prompt.takes.items()
                ],
            )
            for prompt in PROMPTS.values()
        ]
        return types.ListPromptsResult(prompts=prompts, cache_scope="private")

    async def get_prompt(_: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        prompt, arguments = PROMPTS.get(params.name), params.arguments or {}
        if prompt is None or set(arguments) != set(prompt.takes):
            signatures = ", ".join(
                f"{declared.name}({', '.join(declared.takes)})" for declared in PROMPTS.values()
            )
            raise MCPError(code=types.INVALID_PARAMS, message=f"prompts are {signatures}")
        text = prompt.text.format(**{name: value[:200] for name, value in arguments.items()})
        message = types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))
        return types.GetPromptResult(description=prompt.description, messages=[message])

    return Server(
        "pulse",
        version="1",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )


def _cursor(params: types.PaginatedRequestParams | None, begins: str | None) -> str:
    """Where a page begins; empty: at the start. `begins`: how all cursors do, None: there are none."""
    cursor = params.cursor if params and params.cursor else ""
    if cursor and not (begins and cursor.startswith(begins)):
        raise MCPError(code=types.INVALID_PARAMS, message="the cursor is none of next_cursor")
    return cursor


async def _call(session: Session, params: types.CallToolRequestParams) -> dict[str, Any]:
    if (tool := TOOLS.get(params.name)) is None:
        raise UserError(
            f"unknown tool {params.name[:100]!r}",
            fix=meant(params.name, TOOLS, f"Use {', '.join(TOOLS)}"),
        )
    try:
        arguments = tool.arguments.model_validate(params.arguments or {})
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}"
            for fault in error.errors()[:5]
        )
        raise UserError(wrong, fix=f"For example {orjson.dumps(tool.example).decode()}") from error
    return (await tool.call(session, arguments)).document()


def _tool(name: str) -> types.Tool:
    tool = TOOLS[name]
    return types.Tool(
        name=name,
        description=tool.full_description(),
        input_schema=tool.arguments.model_json_schema(),
        annotations=types.ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False),
    )


def _result(document: dict[str, Any], *, is_error: bool) -> types.CallToolResult:
    content = json_values.encoded(document)
    if len(content) > MAX_TEXT:
        document = {
            "error": f"the answer has {len(content):,} bytes, {MAX_TEXT:,} are the most",
            "fix": "Ask for fewer rows by `limit` or `top`, for fewer columns, or aggregate",
        }
        content, is_error = orjson.dumps(document), True
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=content.decode())],
        structured_content=json_values.decoded(content),  # the SDK writes a Decimal as text
        is_error=is_error,
    )
