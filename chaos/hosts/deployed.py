"""Pulse on five hosts and an engine on a sixth: which service is where, and how all of it is started."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos.hosts import composed
from chaos.hosts.composed import ROOT, Deployment
from chaos.hosts.network import Network

PLACEMENT = {
    "postgres": "data",
    "kafka": "data",
    "minio": "data",
    "prepare": "control",
    "dagster-code": "control",
    "dagster-webserver": "control",
    "dagster-daemon": "control",
    "spark": "spark",
    "api": "front",
    "lake": "front",
}
"""The host of each service of docker/compose.yaml."""
SECOND = {"api": "api-2", "lake": "lake-2"}
"""Services that run on the second front host, too."""
FRONTS = ("front", "front-2")
HOSTS = {
    "data": ["postgres", "kafka", "minio"],
    "control": ["dagster"],
    "spark": [],
    "front": ["api", "lake"],
    "front-2": [],
    "engine": [],
}
"""The hosts, each with its other names."""
SETTINGS = {"PULSE_INGEST__FLUSH_SECONDS": "3", "PULSE_INGEST__RETRY_BACKOFF_SECONDS": "1"}


@contextmanager
def deployed(folder: Path, image: Path) -> Iterator[Deployment]:
    """Start everything; sockets of this thread, and of those that it starts, are in the hosts' network.

    Args:
        folder: takes what the hosts write.
        image: takes the installed wheel; both are empty.
    """
    lines = (ROOT / "docker" / ".env.example").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    layers = composed.build_image(image)
    with Network(folder, HOSTS) as network:
        variables |= {
            "API_URL": f"http://{network.address('front')}:8000",
            "LAKE_URL": f"http://{network.address('front')}:8181",
            "STORE_URL": f"http://{network.address('data')}:9000",
            "DAGSTER_URL": f"http://{network.address('control')}:3000",
        }
        services = dict(composed.read_services(variables))
        services |= {second: services[first] for first, second in SECOND.items()}
        placement = PLACEMENT | dict.fromkeys(SECOND.values(), "front-2")
        deployment = Deployment(network, services, placement, layers, SETTINGS)
        network.add("engine", composed.pulse_files(layers))
        deployment.start()
        with network.reached():
            yield deployment
