"""What the chart gives to its pods, tried without Kubernetes: on hosts that are made of namespaces.

Each pod is a host. Its services have the chart's command lines, variables and probes, they may write into the
chart's volumes alone, and hosts that `connections` does not join cannot reach each other.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import permutations

import httpx
import pytest
from support.charts import CHART, merge_values, read_yaml, variables

from chaos.hosts import composed
from chaos.hosts.composed import ROOT, Deployment
from chaos.hosts.network import Network, missing
from chaos.waiting import wait

TABLE = read_yaml(CHART / "services.yaml")
POD_OF = {service: pod for pod, services in TABLE["pods"].items() for service in services}
STORES = {"postgres": "postgres", "kafka": "kafka", "store": "minio"}
"""Names in `connections`, and the services of compose that stand for the user's own."""
PORTS = {5432: "postgres", 19092: "kafka", 9000: "store", 15002: "spark"}
EVENTS = 500
LIKE_COMPOSE = {
    "PULSE_POSTGRES__HOST": "postgres",
    "PULSE_KAFKA__BOOTSTRAP_SERVERS": "kafka:19092",
    "PULSE_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
    "PULSE_KAFKA__SASL_MECHANISM": "PLAIN",
    "PULSE_OBJECT_STORE__ENDPOINT": "http://minio:9000",
    "PULSE_OBJECT_STORE__VENDING_BY_TENANT": "true",
    "PULSE_INGEST__FLUSH_SECONDS": "3",
}


def chart_services(compose: composed.Services) -> composed.Services:
    """Compose's services with the chart's variables, and the values of compose's secrets in them."""
    values = merge_values(CHART / "ci" / "minimal-values.yaml")
    values = {**values, "settings": values["settings"] | LIKE_COMPOSE}
    token = re.search(r"Bearer%20([^;]+)", compose["api"]["environment"]["PULSE_SPARK__REMOTE"])
    assert token
    services = dict(compose)
    for name in POD_OF:
        secrets = {**compose[name]["environment"], "PULSE_SPARK__TOKEN": token[1]}
        environment = {
            variable: value if isinstance(value, str) else secrets[variable]
            for variable, value in variables(TABLE, values, name).items()
        }
        services[name] = {**compose[name], "environment": environment}
    return services


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    if reason := missing():
        pytest.skip(f"hosts cannot be made here: {reason}")
    # The pod of `prepare` is gone when the others start; this one runs it on the host of the daemon.
    placement = dict.fromkeys(STORES.values(), "data") | POD_OF | {"prepare": "dagster"}
    names = {"data": list(STORES.values()), "spark": ["pulse-spark"], "api": [], "lake": [], "dagster": []}
    lines = (ROOT / "docker" / ".env.example").read_text().splitlines()
    example = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    services = chart_services(composed.read_services(example))
    layers = composed.build_image(tmp_path_factory.mktemp("image"))
    with Network(tmp_path_factory.mktemp("chart"), names) as network:
        deployment = Deployment(network, services, placement, layers)
        deployment.start()
        with network.reached():
            yield deployment


def connected(deployment: Deployment, pod: str) -> set[str]:
    """What the processes of a host are connected to, on other hosts."""
    done = deployment.network.hosts[pod].run(["cat", "/proc/net/tcp", "/proc/net/tcp6"], user="root")
    remote = {
        int(line.split()[2].rpartition(":")[2], 16) for line in done.stdout.splitlines() if ": " in line
    }
    return {PORTS[port] for port in remote if port in PORTS}


@pytest.mark.slow
def test_the_chart_s_services_work_within_its_volumes_and_policies(deployment: Deployment) -> None:
    network = deployment.network
    pods = ("spark", "api", "lake", "dagster")
    joined = {(pod, target) for pod in pods for target in TABLE["connections"][pod]}
    connections: dict[str, set[str]] = {pod: set() for pod in pods}
    with ExitStack() as cuts, httpx.Client(trust_env=False, timeout=60) as client:
        for pair in permutations(pods, 2):
            if pair not in joined and pair[::-1] not in joined:
                cuts.enter_context(network.lost(*pair))
        client.base_url = httpx.URL(f"http://{network.address('api')}:8000")
        result = deployment.execute("api", ["pulse", "key", "operator", "create"])
        operator = {"Authorization": f"Bearer {result.stdout.split()[0]}"}
        client.post("/v1/tenants", headers=operator, json={"slug": "acme"}).raise_for_status()
        scopes = {"name": "all", "scopes": ["collect", "read", "manage", "lake:read"]}
        key = client.post("/v1/tenants/acme/keys", headers=operator, json=scopes).raise_for_status()
        client.headers["Authorization"] = f"Bearer {key.json()['key']}"
        schema = {"name": "orders", "fields": {"amount": "number"}}
        client.post("/v1/schemas", json=schema).raise_for_status()
        dataset = {"slug": "orders", "schema_uri": "pulse://acme/orders/1"}
        client.post("/v1/datasets", json=dataset).raise_for_status()
        base = {"dataset": "orders", "timestamp": "2026-11-19T10:00:00Z", "data": {"amount": 0.5}}
        events = [base | {"event_id": f"e-{number}"} for number in range(EVENTS)]
        client.post("/v1/collect", json=events).raise_for_status()

        def landed() -> bool:
            for pod in pods:
                connections[pod] |= connected(deployment, pod)
            deployment.mend()
            answer = client.post("/v1/sql", json={"sql": "SELECT count(*) AS rows FROM orders"})
            return answer.status_code == 200 and answer.json()["rows"][0]["rows"] == EVENTS

        wait(landed, "the events are not rows")
        catalog = httpx.get(
            f"http://{network.address('lake')}:8181/v1/config",
            headers=dict(client.headers),
            trust_env=False,
        )
        assert catalog.status_code == 200
        for name in POD_OF:
            for probe in ("live", "ready"):
                check(deployment, name, probe)
    print("\n".join(f"{pod} connects to {sorted(targets)}" for pod, targets in connections.items()))
    assert all(targets <= set(TABLE["connections"][pod]) for pod, targets in connections.items())
    volumes = {"/tmp", "/var/lib/pulse", "/var/lib/dagster", "/opt/dagster"}  # noqa: S108
    for pod in pods:
        written = written_elsewhere(deployment, pod, volumes)
        assert written == [], f"{pod} writes into its root file system"


def check(deployment: Deployment, service: str, probe: str) -> None:
    """Ask what Kubernetes would ask, from outside where it asks over the network."""
    handler = TABLE["services"][service].get(probe, {})
    if "exec" in handler:
        done = deployment.execute(service, handler["exec"]["command"])
        assert done.returncode == 0, f"{service} {probe}: {done.stderr}"
    if request := handler.get("httpGet"):
        port = TABLE["services"][service]["ports"][request["port"]]
        address = deployment.network.address(POD_OF[service])
        headers = {header["name"]: header["value"] for header in request.get("httpHeaders", ())}
        url = f"http://{address}:{port}{request['path']}"
        answer = httpx.get(url, headers=headers, trust_env=False, timeout=30)
        assert answer.status_code == 200, f"{service} {probe}: {answer.text}"


def written_elsewhere(deployment: Deployment, pod: str, volumes: set[str]) -> list[str]:
    """Files and folders that the user `pulse` has on a host, outside of the volumes of the chart."""
    pruned = " -o ".join(f"-path {path}" for path in ("/proc", "/dev", "/usr", "/etc", *sorted(volumes)))
    # What the host itself makes for its user, and the link that stands for the image's working folder.
    image_folders = {"/srv", "/srv/pulse", "/srv/app", "/var/lib", "/var/log", "/run"}
    script = f"find / \\( {pruned} \\) -prune -o -user pulse -print"
    done = deployment.network.hosts[pod].run(["/bin/sh", "-c", script], user="root")
    return sorted(set(done.stdout.split()) - image_folders)
