"""`python -m pulse_api.http.server`: the app under uvicorn, at the addresses of the settings.

A second port serves only health and metrics, so that they answer when the first port is full.
"""

import asyncio
import gc
import os
import resource
import socket
import sys
from collections.abc import Callable
from functools import partial

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from pulse_api.http import logs
from pulse_api.http.admission.bounded_protocol import BoundedProtocol
from pulse_api.http.admission.connections import Connections
from pulse_api.http.app import create_app
from pulse_resources.settings import load_settings
from pulse_resources.settings.api_settings import ApiSettings

GRACE_S = 15
ACCEPT_S = 0.5
"""Seconds in which a server that ends still accepts, and tells its clients to close their connections."""
WATCHED = frozenset({"/healthz", "/readyz", "/metrics"})
MAX_WATCHERS = 32
"""Connections of the second port, in total and per address."""
SWITCH_S = 0.001
"""Thread switch interval: Python's default of 5 ms adds up within a request."""
OTHER_FILES = 1_000
"""File descriptors not used by clients: Kafka, Postgres, the object store."""


class Server(uvicorn.Server):
    """Serves an app on the ports of the settings, within their limits."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        connections = Connections(settings, settings.max_connections, settings.max_connections_per_address)
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                loop="uvloop",
                http=partial(BoundedProtocol, connections=connections),  # type: ignore[arg-type]
                ws="none",
                access_log=False,
                proxy_headers=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=settings.keep_alive_seconds,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self._settings = settings
        self._connections = connections
        self._watchers = Connections(settings, MAX_WATCHERS, MAX_WATCHERS)

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if port := self._settings.health_port:
            loop = asyncio.get_running_loop()
            self.servers.append(await loop.create_server(self._watcher, self._settings.host, port))

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer whom the kernel let in, too: closing the listening sockets resets those connections."""
        self._connections.ending = self._watchers.ending = True
        for server in self.servers:
            for shared in server.sockets:
                with socket.socket(fileno=os.dup(shared.fileno())) as listener:
                    listener.listen(0)  # the kernel lets one more in at a time
        await asyncio.sleep(ACCEPT_S)
        await super().shutdown(sockets)

    def _watcher(self) -> BoundedProtocol:
        protocol = BoundedProtocol(
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            connections=self._watchers,
        )
        protocol.app = partial(_watched, protocol.app)
        return protocol


async def _watched(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve the app's health and metrics paths; every other path is a 404."""
    if scope["path"] not in WATCHED:
        scope["path"] = "/not-on-this-port"
    await app(scope, receive, send)


def main() -> None:
    """Serve until SIGTERM or SIGINT; requests under way are finished first."""
    serve(create_app, load_settings().api)


def serve(make: Callable[[], ASGIApp], settings: ApiSettings) -> None:
    """Serve an app in this process, which does nothing else, until SIGTERM or SIGINT."""
    logs.configure()
    app = make()
    _allow_files(settings.max_connections + OTHER_FILES)
    # Objects from startup are permanent: collecting over them again and again doubles the cost of a request.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    sys.setswitchinterval(SWITCH_S)
    Server(app, settings).run()


def _allow_files(count: int) -> None:
    """Raise the limit of open files as far as allowed: without descriptors no client can be accepted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


if __name__ == "__main__":
    main()
