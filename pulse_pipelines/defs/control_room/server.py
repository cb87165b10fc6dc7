"""`python -m pulse_pipelines.defs.control_room.server`: Dagster's UI behind the guard.

It differs from `dagster-webserver` in three ways: addresses come from the settings, the caller's role decides
what Dagster allows (read-only: no mutations, buttons greyed out), and GraphQL is accepted by POST only, since
an image on a page of another site is a GET.
"""

import argparse
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar

import uvicorn
from dagster import DagsterInstance
from dagster_webserver.version import __version__
from dagster_webserver.webserver import DagsterWebserver
from graphql import GraphQLError, OperationDefinitionNode, OperationType, parse
from pydantic import BaseModel, Field, Json, ValidationError
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, Response

from pulse_pipelines.defs.control_room import guard, pages
from pulse_pipelines.defs.control_room.bounded_heads import BoundedHeads
from pulse_pipelines.defs.control_room.identity import Identity, Role
from pulse_pipelines.runtime.parts import keep_loaded_parts
from pulse_pipelines.runtime.workspace import (
    WorkspaceFileTarget,
    WorkspaceProcessContext,
    WorkspaceRequestContext,
    configure_loggers,
)
from pulse_resources.errors import PulseError, UserError
from pulse_resources.settings import load_settings

STATEMENT_MS = 15_000
RECYCLE_S = 3_600
OVERFLOW = 20
"""Connections to Dagster's database beyond the pool; Dagster's own default."""
LIVE_MS = 2_000
"""Polling interval of the UI."""
GRACE_S = 5
POLICY = (
    "default-src 'self'; script-src 'nonce-{nonce}' 'strict-dynamic'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


class Workspace(WorkspaceProcessContext):
    """Dagster's workspace, with the permissions of the request's role."""

    def create_request_context(self, source: object | None = None) -> WorkspaceRequestContext:
        role = source.scope.get(guard.ROLE) if isinstance(source, HTTPConnection) else None
        return WorkspaceRequestContext(
            instance=self.instance,
            current_workspace=self.get_current_workspace(),
            process_context=self,
            version=self.version,
            source=source,
            read_only=role is not Role.OPERATOR,
        )


class Query(BaseModel):
    """A query of GraphQL, as Dagster's UI and clients send it. Variables may be JSON as text."""

    FORM: ClassVar = '{"query": "...", "variables": {...}, "operationName": "..."} as JSON in UTF-8'

    query: str
    variables: dict[str, Any] | Json[dict[str, Any]] | None = None
    operation_name: str | None = Field(default=None, alias="operationName")


class ControlRoom(DagsterWebserver[Workspace, WorkspaceRequestContext]):
    """Dagster's web application, without changes by GET or by the read-only role."""

    def make_csp_header(self, nonce: str) -> str:
        return POLICY.format(nonce=nonce)

    def index_html_endpoint(self, request: Request) -> Response:
        """Dagster's page, with a sign-out link."""
        page: Response = super().index_html_endpoint(request)
        shown = bytes(page.body).replace(b"</body>", pages.SIGN_OUT.encode() + b"</body>")
        policy = page.headers["content-security-policy"]
        return HTMLResponse(shown, headers={"Content-Security-Policy": policy})

    async def graphql_http_endpoint(self, request: Request) -> Response:
        """For POST only; Dagster's own answers 500 to JSON of another shape."""
        if request.method != "POST":
            return guard.Refused(405, "GraphQL is asked by POST", "POST the query as JSON").response()
        try:
            query = Query.model_validate_json(await request.body())
        except ValidationError as error:
            wrong = error.errors()[0]
            where = "".join(map(str, wrong["loc"][:1])) or "the body"
            return guard.Refused(400, f"{where}: {wrong['msg']}", "POST " + Query.FORM).response()
        answer: Response = await self.execute_graphql_request(
            request, query.query, query.variables, query.operation_name
        )
        return answer

    def graphql_execution_thread(self, request: Request, query: str, **rest: Any) -> Response:  # type: ignore[override]
        """Dagster's, but refuses mutations by read-only callers: not all of Dagster's check that."""
        if request.scope[guard.ROLE] is not Role.OPERATOR and changes(query):
            return guard.read_only().response()
        return super().graphql_execution_thread(request=request, query=query, **rest)


def changes(query: str) -> bool:
    """Whether a GraphQL document contains a mutation."""
    if "mutation" not in query:  # the keyword has no other spelling, and parsing takes milliseconds
        return False
    try:
        definitions = parse(query).definitions
    except GraphQLError:
        return False  # Dagster reports the error and runs nothing
    operations = (node.operation for node in definitions if isinstance(node, OperationDefinitionNode))
    return OperationType.MUTATION in operations


@asynccontextmanager
async def _lifespan(_: Starlette) -> AsyncIterator[None]:
    with suppress(KeyboardInterrupt):
        yield


def main(arguments: list[str]) -> int:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-w", "--workspace", required=True, help="the code locations to show")
    parser.add_argument("--log-level", default="warning")
    options = parser.parse_args(arguments)
    configure_loggers(log_level=options.log_level.upper())
    keep_loaded_parts()
    try:
        serve(options.workspace, options.log_level)
    except PulseError as error:
        logging.getLogger("dagster-webserver").error(error)
        return 1
    return 0


def serve(workspace: str, log_level: str) -> None:
    """Run the server.

    Raises:
        UserError: no way to sign in is configured.
    """
    settings = load_settings().dagster
    if not Identity(settings).is_configured():
        raise UserError(
            "no one could sign in to the control room",
            fix="Set PULSE_DAGSTER__TOKEN, or PULSE_DAGSTER__PROXY_HEADER and PULSE_DAGSTER__PROXY_ADDRESSES",
        )
    with (
        DagsterInstance.get() as instance,
        Workspace(instance, WorkspaceFileTarget([workspace]), version=__version__) as shown,
    ):
        instance.optimize_for_webserver(STATEMENT_MS, RECYCLE_S, OVERFLOW)
        app = ControlRoom(shown, live_data_poll_rate=LIVE_MS).create_asgi_app(lifespan=_lifespan)
        uvicorn.run(
            guard.Guard(app, settings),
            http=BoundedHeads,
            host=settings.host,
            port=settings.webserver_port,
            log_level=log_level,
            access_log=False,
            proxy_headers=False,  # trust is decided by the client's address, which a header must not replace
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
