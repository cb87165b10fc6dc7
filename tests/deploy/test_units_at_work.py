"""deploy/systemd with Postgres, Kafka and an object store: events become rows under its units."""

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from support.ingest import event, make_owner
from support.systemd import Systemd, missing, started

from chaos.waiting import PATIENCE_S, wait
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.registry import keys
from pulse_resources.local import ports, spark
from pulse_resources.local.layout import Layout
from pulse_resources.settings import Settings

pytestmark = pytest.mark.slow
DAGSTER = ("pulse-dagster-code", "pulse-dagster-webserver", "pulse-dagster-daemon")
SERVICES = ("pulse-spark", "pulse-api", "pulse-lake", *DAGSTER)
FILES = ("pulse", "prepare", "lake", "dagster-webserver", "api")
"""Each has all variables: those of a service's file replace the ones in its unit."""


def variables(settings: Mapping[str, Any], prefix: str = "PULSE") -> Iterator[str]:
    """Lines of an environment file."""
    for name, value in settings.items():
        variable = f"{prefix}_{name.upper()}" if prefix == "PULSE" else f"{prefix}__{name.upper()}"
        if isinstance(value, dict):
            yield from variables(value, variable)
        else:
            yield f"{variable}={shlex.quote(value if isinstance(value, str) else json.dumps(value))}"


def configure(systemd: Systemd, stack: Settings) -> str:
    """Give the units the data services of the tests' stack; returns the address of their API."""
    stored = json.loads(Layout(stack.home).settings_file.read_text())
    del stored["local"]
    chosen_ports: list[int] = []
    for section, name in (
        ("api", "port"),
        ("api", "health_port"),
        ("lake", "port"),
        ("lake", "health_port"),
        ("dagster", "webserver_port"),
    ):
        chosen_ports.append(ports.choose_any(chosen_ports))
        stored[section][name] = chosen_ports[-1]
    own = ports.choose_any(chosen_ports)
    stored["spark"]["remote"] = stored["spark"]["remote"].replace(stack.spark.place, f"sc://127.0.0.1:{own}")
    stored["object_store"]["public_endpoint"] = stack.object_store.endpoint
    lines = "\n".join(variables(stored))
    files = " ".join(f"/etc/pulse/{name}.env" for name in FILES)
    systemd.run(f"cat > /run/lines <<'END'\n{lines}\nEND\ntee {files} < /run/lines > /dev/null")
    return f"http://127.0.0.1:{stored['api']['port']}"


def test_events_become_rows_and_services_that_end_return(
    stack: Settings, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if reason := missing() or ("" if spark.DOWNLOAD.path.exists() else "Spark's jars are not there"):
        pytest.skip(f"no systemd can be started here: {reason}")
    owner = make_owner()
    key = keys.issue_key(owner.tenant, "units", tuple(KeyScope))
    with started(tmp_path_factory.mktemp("units"), own_network=False) as systemd:
        systemd.install()
        address = configure(systemd, stack)
        systemd.run(f"systemctl start pulse-prepare && systemctl start {' '.join(SERVICES)}")
        with httpx.Client(
            base_url=address, headers={"Authorization": f"Bearer {key.text}"}, timeout=PATIENCE_S
        ) as http:

            def rows() -> set[str]:
                answer = http.get("/v1/datasets/orders/preview")
                return {row["id"] for row in answer.json()["rows"]} if answer.is_success else set()

            def send(name: str) -> None:
                answer = http.post("/v1/collect", content=event(name))
                assert answer.status_code == 202, answer.text

            wait(lambda: is_ready(systemd), "a service is not active")
            wait(lambda: answers(http), "the API does not answer")
            send("a")
            wait(lambda: rows() == {"a"}, "the event is no row")
            for service in ("pulse-spark", "pulse-dagster-code", "pulse-api"):
                systemd.run(f"kill -KILL {systemd.state(service, 'MainPID')}")
            wait(lambda: is_ready(systemd) and answers(http), "a service was not started again")
            send("b")
            wait(lambda: rows() == {"a", "b"}, "no event becomes a row after services were killed")
        systemd.run(f"systemctl stop {' '.join(SERVICES)}")
        assert {systemd.state(service, "Result") for service in SERVICES} == {"success"}


def is_ready(systemd: Systemd) -> bool:
    return systemd.run(f"systemctl is-active {' '.join(SERVICES)}", check=False).split() == ["active"] * len(
        SERVICES
    )


def answers(http: httpx.Client) -> bool:
    try:
        return http.get("/v1/datasets").is_success
    except httpx.TransportError:
        return False
