"""`python -m pulse_api.http.server`: the app under uvicorn, with the addresses of the settings."""

import logging
import sys

import uvicorn

from pulse_api.http.app import create_app
from pulse_resources.settings import load_settings

GRACE_S = 15


def main() -> None:
    """Serve until SIGTERM or SIGINT; requests under way are finished first."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    settings = load_settings().api
    uvicorn.run(
        create_app(),
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        limit_concurrency=1_000,
    )


if __name__ == "__main__":
    main()
