"""Queries that Pulse runs for a caller, for a question or an MCP tool. They count as the caller's own."""

import asyncio

from pulse_api.http.app_state import AppState, Kind
from pulse_api.http.auth import Principal, check_still_in_force, take
from pulse_pipelines.ask.read import QueryResult, Run
from pulse_pipelines.sql.encoders import of_json
from pulse_pipelines.sql.pinned import Travel
from pulse_pipelines.sql.run import QueryRequest


def runner(state: AppState, principal: Principal) -> Run:
    """SQL runner for a caller's tenant: gated, rate limited, in the tenant's turn, recorded for its key."""

    async def run(sql: str) -> QueryResult:
        return await run_query(state, principal, sql)

    return run


async def run_query(
    state: AppState,
    principal: Principal,
    sql: str,
    *,
    travel: Travel | None = None,
) -> QueryResult:
    """Result of a query. Raises PulseError as `Queries.run`, and ProblemError beyond the tenant's rate.

    A question may have waited for a model since it presented its key, which may have been revoked meanwhile.
    """
    await check_still_in_force(state, principal)
    tenant = principal.tenant
    take(state, tenant, Kind.SQL.value, 1, state.per_second[Kind.SQL], state.burst_seconds)
    request = QueryRequest(tenant=tenant, sql=sql, key_id=principal.key_id, travel=travel or Travel())
    with state.results.of(tenant.tenant_id) as holding:
        holding.add(0)  # nothing more is computed while too many result bytes wait to be fetched
        async with state.turns[Kind.SQL].take(tenant.tenant_id):
            result = await state.queries.run(request)
        holding.count(len(result.content))
        document = await asyncio.to_thread(of_json, result.content)
    return QueryResult(request.query_id, document["columns"], document["rows"], result.snapshots)
