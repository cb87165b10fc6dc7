"""Dagster as three services: code server, web server and daemon.

Separate, instead of `dagster dev`, which survives SIGTERM with its children.
"""

import json
import time
import urllib.error
import urllib.request
from typing import Any

from pulse_resources.errors import Transient
from pulse_resources.local.layout import Layout, repository
from pulse_resources.local.service import Service, listens, patient, python, responds
from pulse_resources.settings import Settings
from pulse_resources.settings.api_settings import local_url

MODULE = "pulse_pipelines.definitions"
SERVICES = ("dagster-code", "dagster-webserver", "dagster-daemon")
LOAD_S = 300.0
"""How long the definitions may take to load."""


def environment(settings: Settings) -> dict[str, str]:
    """Environment read by `dagster.yaml` and `workspace.yaml` in `dagster_home/`."""
    data = str(settings.home / "dagster")
    return {
        "DAGSTER_HOME": data,
        "DAGSTER_DATA_DIR": data,
        "DAGSTER_EVENT_BATCH_SIZE": "500",
        # The launch of a run, or a look of a sensor, that took longer would fail, and be done again.
        "DAGSTER_GRPC_TIMEOUT_SECONDS": "300",
        # Bytes of the snapshot of the definitions: some 20 KB per slug of a dataset. By default 100 MB.
        "DAGSTER_GRPC_MAX_RX_BYTES": str(10**9),
        "DAGSTER_GRPC_MAX_SEND_BYTES": str(10**9),
        "DAGSTER_CODE_SERVER_SOCKET": str(settings.code_server_socket),
    }


def services(layout: Layout, settings: Settings, module: str) -> list[Service]:
    _link_instance(layout)
    env = environment(settings) | {"MALLOC_ARENA_MAX": "2"}
    workspace = str(repository() / "dagster_home" / "workspace.yaml")
    code = settings.code_server_socket
    quiet = ("--log-level", "warning")
    started = time.time()
    return [
        Service(
            name="dagster-code",
            address=f"unix:{code}",
            command=python(
                "pulse_pipelines.runtime.code_server", "--module", module, "--socket", str(code), *quiet
            ),
            env=env,
            needs=("postgres", "kafka", "minio", "spark"),
            ready=listens(f"unix:{code}"),
        ),
        Service(
            name="dagster-webserver",
            address=url(settings),
            command=python("pulse_pipelines.defs.control_room.server", "-w", workspace, *quiet),
            env=env,
            needs=("dagster-code",),
            ready=responds(f"{url(settings)}/healthz"),
            prepare=True,
        ),
        Service(
            name="dagster-daemon",
            address="",
            command=python("pulse_pipelines.runtime.daemon", "-w", workspace, *quiet),
            env=env,
            needs=("dagster-code",),
            ready=patient(lambda seconds: _daemon_beats(settings, started, seconds)),
        ),
    ]


def _link_instance(layout: Layout) -> None:
    # Dagster writes beside its dagster.yaml (`logs`, `.logs_queue`): keep that out of the checkout.
    link = layout.folder("dagster") / "dagster.yaml"
    link.unlink(missing_ok=True)
    link.symlink_to(repository() / "dagster_home" / "dagster.yaml")


def url(settings: Settings) -> str:
    """URL of the UI for a browser on this machine."""
    return local_url(settings.dagster.host, settings.dagster.webserver_port)


def login_url(settings: Settings) -> str | None:
    """URL that signs a browser in as an operator, None if no token is set; holds a secret."""
    token = settings.dagster.token
    # In the fragment, which browsers never send: it is in no log.
    return f"{url(settings)}/login#token={token.get_secret_value()}" if token else None


def load_problem(settings: Settings) -> str | None:
    """Wait until the definitions are loaded; returns the error if they are not."""
    query = """{ workspaceOrError { ... on Workspace { locationEntries { loadStatus
        locationOrLoadError { __typename ... on PythonError { message } } } } } }"""
    deadline = time.monotonic() + LOAD_S
    while time.monotonic() < deadline:
        try:
            entries = ask(settings, query)["workspaceOrError"].get("locationEntries", [])
        except urllib.error.HTTPError as error:
            raise Transient(
                f"what answers at {url(settings)} is not this stack's Dagster UI (HTTP {error.code}): "
                "another program has taken the port since it was chosen",
                fix="Run `pulse up` again: it chooses another port",
            ) from error
        if entries and all(entry["loadStatus"] == "LOADED" for entry in entries):
            loaded = [entry["locationOrLoadError"] for entry in entries]
            errors = [e["message"] for e in loaded if e["__typename"] == "PythonError"]
            return errors[0].strip().splitlines()[-1] if errors else None
        time.sleep(0.3)
    return f"the definitions did not load within {LOAD_S:.0f} s"


def _daemon_beats(settings: Settings, since: float, timeout: float) -> bool:
    """Whether the daemons that launch runs have sent a heartbeat since `since`; raises as `ask`."""
    query = """{ instance { daemonHealth { allDaemonStatuses {
        daemonType required lastHeartbeatTime } } } }"""
    answer = ask(settings, query, timeout=timeout)
    statuses = answer["instance"]["daemonHealth"]["allDaemonStatuses"]
    required = [status for status in statuses if status["required"]]
    return all((status["lastHeartbeatTime"] or 0) > since for status in required)


def ask(
    settings: Settings, query: str, variables: dict[str, Any] | None = None, timeout: float = 10.0
) -> dict[str, Any]:
    """Data of a GraphQL response, requested as an operator.

    Raises:
        OSError: the web server does not answer, or refuses.
    """
    token = settings.dagster.token
    request = urllib.request.Request(  # noqa: S310 - our own URL
        f"{url(settings)}/graphql",
        json.dumps({"query": query, "variables": variables or {}}).encode(),
        {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {token.get_secret_value() if token else ''}",
        },
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
        data: dict[str, Any] = json.load(answer)["data"]
    return data
