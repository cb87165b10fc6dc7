"""The HTTP app: its routes, middleware and lifespan."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
from fastapi import APIRouter, FastAPI
from fastapi_offline import FastAPIOffline
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pulse_api.console import HOME, pages
from pulse_api.http import openapi, problems, telemetry
from pulse_api.http.app_state import AppState
from pulse_api.http.fast_path import FastPath
from pulse_api.http.mcp import Mcp
from pulse_api.http.middleware import Envelope
from pulse_api.http.origins import Origins
from pulse_api.http.routes import (
    ask,
    collect,
    datasets,
    dead_letters,
    entities,
    event_states,
    events,
    freshness,
    health,
    hours,
    indexes,
    keys,
    lake,
    metrics,
    moves,
    pipes,
    preview,
    schemas,
    sql,
    summary,
    syncs,
    tenants,
    usage,
)
from pulse_pipelines import registry
from pulse_resources.settings import load_settings

registry.import_all()  # workers are forks of a process that has imported this module
DESCRIPTION = """\
Many tenants' events into governed Iceberg tables, exactly once.

Publish a JSON Schema, create a dataset that follows it, send events, look at rows. Every request carries a
key (`Authorization: Bearer ...`), and the key alone says whose request it is. Errors are problem documents
(RFC 9457) with the request's id.
"""
ROUTERS: tuple[APIRouter, ...] = (
    collect.router,
    schemas.router,
    datasets.router,
    freshness.router,
    hours.router,
    moves.router,
    preview.router,
    sql.router,
    sql.records,
    ask.router,
    ask.records,
    ask.meanings,
    summary.router,
    events.router,
    events.places,
    entities.router,
    syncs.router,
    indexes.router,
    event_states.router,
    pipes.router,
    dead_letters.searches,
    dead_letters.router,
    usage.router,
    keys.router,
    lake.router,
    tenants.router,
    health.router,
    metrics.router,
)


def create_app() -> FastAPI:
    """The app, ready to be served; it connects to nothing before its lifespan begins."""
    settings = load_settings().api
    app = FastAPIOffline(  # /docs loads nothing from elsewhere
        title="Pulse",
        version="1",
        description=DESCRIPTION,
        lifespan=_lifespan,
        openapi_url="/openapi.json",
        redirect_slashes=False,
        generate_unique_id_function=openapi.operation_id,
        telemetry=telemetry.config(collect.PATH),
    )
    app.openapi = lambda: openapi.document(app)  # type: ignore[method-assign]
    app.router.routes.insert(0, Route("/openapi.json", _document, include_in_schema=False))
    app.router.routes[:0] = [Route("/", _welcome, include_in_schema=False), *pages.ROUTES]
    for router in ROUTERS:
        app.include_router(router)
    app.state.mcp = Mcp(settings)
    app.router.routes.append(
        Route("/mcp", app.state.mcp, include_in_schema=False)
    )  # it refuses methods itself
    problems.install(app)
    app.add_middleware(FastPath, path=collect.PATH, endpoint=collect.collect_events)
    app.add_middleware(Origins, settings=settings, path=collect.PATH)
    app.add_middleware(Envelope, max_body_bytes=settings.max_body_bytes, log=settings.access_log)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.pulse = AppState()
    app.openapi()  # generating it takes a second, which would block the first requests
    async with app.state.pulse.open(), app.state.mcp.running():
        yield
    await asyncio.to_thread(telemetry.flush)


async def _welcome(_: Request) -> Response:
    """A person who opens the address in a browser gets to the console."""
    return RedirectResponse(HOME)


async def _document(request: Request) -> Response:
    """The OpenAPI document as cached bytes; FastAPI would serialize it for each request."""
    state = request.app.state
    if not hasattr(state, "openapi"):
        state.openapi = orjson.dumps(request.app.openapi())
    return Response(state.openapi, media_type="application/json")
