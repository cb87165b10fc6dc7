"""`python -m pulse_api.http.server`: the app under uvicorn, with the addresses of the settings."""

import gc

import uvicorn

from pulse_api.http import logs
from pulse_api.http.app import create_app
from pulse_resources.settings import load_settings

GRACE_S = 15


def main() -> None:
    """Serve until SIGTERM or SIGINT; requests under way are finished first."""
    logs.configure()
    settings = load_settings().api
    app = create_app()
    # What is there now stays: a collector that visits it again and again doubles the cost of a request.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        ws="none",
        access_log=False,
        proxy_headers=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        limit_concurrency=1_000,
    )


if __name__ == "__main__":
    main()
