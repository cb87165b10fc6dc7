"""The REST catalog's app, with the paths and documents of the Iceberg REST specification."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware

from pulse_api.http.middleware import Envelope
from pulse_api.lake import errors
from pulse_api.lake.routes import config, namespaces, oauth, tables, views, writes
from pulse_api.lake.routing import MAX_BYTES, RawPaths
from pulse_api.lake.state import LakeState
from pulse_resources.settings import load_settings

PARTS = (config, oauth, namespaces, tables, writes, views)


def create_app() -> Starlette:
    """The app, ready to be served; it connects to nothing before its lifespan begins."""
    app = Starlette(
        routes=[route for part in PARTS for route in part.routes],
        lifespan=_lifespan,
        middleware=[
            Middleware(
                Envelope, max_body_bytes=MAX_BYTES, log=load_settings().api.access_log, checks_address=False
            ),
            Middleware(RawPaths),
        ],
    )
    app.router.redirect_slashes = False
    errors.install(app)
    return app


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    app.state.lake = LakeState()
    async with app.state.lake.open():
        yield
