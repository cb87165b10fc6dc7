"""`python -m pulse_api.lake.server`: the REST catalog under uvicorn, with the addresses of the settings."""

from pulse_api.http.server import serve
from pulse_api.lake.app import create_app
from pulse_resources.settings import load_settings


def main() -> None:
    """Serve until SIGTERM or SIGINT; requests under way are finished first."""
    settings = load_settings()
    lake = settings.lake
    ours = {"host": lake.host, "port": lake.port, "health_port": lake.health_port}
    serve(create_app, settings.api.model_copy(update=ours))


if __name__ == "__main__":
    main()
