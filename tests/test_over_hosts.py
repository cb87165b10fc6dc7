"""All of Pulse on separate hosts, which share nothing but the network."""

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from support import composed, hosts
from support.composed import ROOT, Deployment
from support.hosts import Network

from chaos.waiting import PATIENCE_S, wait

NAMES = {
    "data": ["postgres", "kafka", "minio"],
    "control": ["dagster"],
    "spark": [],
    "front": ["api", "lake"],
    "engine": [],
}
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
DATA = ("postgres", "kafka", "minio")
MORE = {"PULSE_INGEST__FLUSH_SECONDS": "3", "PULSE_INGEST__RETRY_BACKOFF_SECONDS": "1"}
EVENTS, REQUEST = 2_000, 250
BEFORE_S, FAULT_S, PAUSE_S = 5, 20, 0.2
DATASET = {"slug": "orders", "schema_uri": "pulse://acme/orders/1", "on_invalid": "dead_letter"}
SCHEMA = {"name": "orders", "fields": {"country": "string", "amount": "number"}, "required": ["country"]}
READ = """
import json
print(json.dumps(catalog.load_table("events.orders").scan().to_arrow()["id"].to_pylist()))
"""


@dataclass
class Tenant:
    """A tenant of the deployment, and what it has sent, as its clients know it."""

    deployment: Deployment
    client: httpx.Client
    key: str
    sent: set[str] = field(default_factory=set)
    dead: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    """What requests were answered with that were not accepted."""
    recovered_s: float = 0.0

    def send(self, number: int = EVENTS) -> None:
        """Send events and one that cannot land, each twice, until all of them are accepted."""
        first = len(self.sent)
        ids = [f"e-{n}" for n in range(first, first + number)]
        events = [event(name, {"country": "DE", "amount": 0.5}) for name in ids]
        for start in range(0, number, REQUEST):
            self._accepted(events[start : start + REQUEST])
            self._accepted(events[start : start + REQUEST])
        self._accepted([event(f"bad-{first}", {"amount": 0.5})])
        self.sent |= set(ids)
        self.dead += 1

    def _accepted(self, events: list[dict[str, Any]]) -> None:
        def accepted() -> bool:
            try:
                answer = self.client.post("/v1/collect", json=events)
            except httpx.TransportError as error:
                self.refusals[type(error).__name__] += 1
                return False
            if answer.status_code != 202:
                self.refusals[str(answer.status_code)] += 1
            return answer.status_code == 202

        wait(accepted, f"the events are not accepted: {self.refusals}")

    def reconciled(self) -> dict[str, Any]:
        """What `pulse reconcile` says on the host `control`."""
        done = self.deployment.execute("dagster-code", ["pulse", "reconcile", "acme", "--json"])
        report: dict[str, Any] = json.loads(done.stdout)["tenants"][0]
        return report

    @contextmanager
    def sending(self) -> Iterator[Callable[[], None]]:
        """Events are sent while the block runs, in which something fails.

        Gives a function to call at the end of the fault: it waits until all are accepted and are rows.
        """
        self.deployment.mend()
        self.refusals.clear()
        ended = threading.Event()

        def send() -> None:
            while not ended.is_set():
                self.send(REQUEST)
                ended.wait(PAUSE_S)

        thread = threading.Thread(target=send)
        thread.start()
        time.sleep(BEFORE_S)  # a batch may be on its way by then; the verdict does not depend on it

        def sent() -> None:
            began = time.monotonic()
            ended.set()
            thread.join()
            self.settle()
            self.recovered_s = time.monotonic() - began

        try:
            yield sent
        finally:
            ended.set()
            thread.join()

    def judge(self, fault: str) -> None:
        """Compare what was sent with the rows, as an engine reads them, and with the ledger."""
        refused = {kind: number for kind, number in self.refusals.items() if number}
        print(f"{fault}: {len(self.sent)} rows {self.recovered_s:.0f} s after; refused meanwhile: {refused}")
        assert differences(self.sent, self.ids()) == {}
        report = self.reconciled()
        assert report["balanced"], report
        assert (report["landed"], report["dead_letters"]) == (len(self.sent), self.dead)

    def settle(self) -> float:
        """Wait until everything sent is a row or a dead letter; returns the seconds."""

        def settled() -> bool:
            self.deployment.mend()
            time.sleep(1)
            return self.count() == len(self.sent)

        return wait(settled, "not all events are rows", 2 * PATIENCE_S)

    def count(self) -> int | None:
        """Number of rows, by SQL through the API; None while it cannot be read."""
        try:
            answer = self.client.post("/v1/sql", json={"sql": "SELECT count(*) AS rows FROM orders"})
        except httpx.TransportError:
            return None
        return int(answer.json()["rows"][0]["rows"]) if answer.status_code == 200 else None

    def ids(self) -> list[str]:
        """The id of each row, read by an engine on a host that has nothing but a key and an address."""
        connect = ["pulse", "lake", "connect", "acme", "--engine", "pyiceberg", "--key", self.key]
        lines = self.deployment.execute("lake", connect).stdout.splitlines()
        script = "\n".join([*(line for line in lines if not line.startswith("print")), READ])
        done = self.deployment.network.hosts["engine"].run([f"{composed.IMAGE}/bin/python", "-c", script])
        assert not done.returncode, done.stderr
        ids: list[str] = json.loads(done.stdout)
        return ids


def event(name: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"event_id": name, "dataset": "orders", "timestamp": "2026-11-19T10:00:00Z", "data": data}


def differences(sent: set[str], rows: list[str]) -> dict[str, int]:
    """Ids of which there is not exactly one row, with the number of rows."""
    counted = Counter(rows)
    return {name: counted[name] for name in sent | counted.keys() if counted[name] != (name in sent)}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    if reason := hosts.missing():
        pytest.skip(f"hosts cannot be made here: {reason}")
    folder = tmp_path_factory.mktemp("over-hosts")
    lines = (ROOT / "docker" / ".env.example").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    layers = composed.build_image(tmp_path_factory.mktemp("image"))
    with Network(folder, NAMES) as network:
        variables |= {
            "API_URL": f"http://{network.address('front')}:8000",
            "LAKE_URL": f"http://{network.address('front')}:8181",
            "STORE_URL": f"http://{network.address('data')}:9000",
            "DAGSTER_URL": f"http://{network.address('control')}:3000",
        }
        services = composed.read_services(variables)
        deployment = Deployment(network, services, PLACEMENT, layers, MORE)
        network.add("engine", composed.pulse_files(layers))
        deployment.start()
        with network.reached():
            yield deployment


@pytest.fixture(scope="module")
def tenant(deployment: Deployment) -> Iterator[Tenant]:
    made = deployment.execute("api", ["pulse", "key", "operator", "create"])
    operator = {"Authorization": f"Bearer {made.stdout.split()[0]}"}
    address = f"http://{deployment.network.address('front')}:8000"
    with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
        client.post("/v1/tenants", headers=operator, json={"slug": "acme"}).raise_for_status()
        scopes = {"name": "all", "scopes": ["collect", "read", "manage", "lake:read"]}
        made_key = client.post("/v1/tenants/acme/keys", headers=operator, json=scopes).raise_for_status()
        client.headers["Authorization"] = f"Bearer {made_key.json()['key']}"
        client.post("/v1/schemas", json=SCHEMA).raise_for_status()
        client.post("/v1/datasets", json=DATASET).raise_for_status()
        yield Tenant(deployment, client, made_key.json()["key"])


@pytest.mark.slow
def test_events_sent_to_one_host_are_rows_in_the_store_of_another_exactly_once(tenant: Tenant) -> None:
    tenant.send()
    seconds = tenant.settle()
    print(f"{EVENTS} events, each sent twice, were rows after {seconds:.0f} s")
    rows = tenant.ids()
    assert differences(tenant.sent, rows) == {}
    assert differences(tenant.sent | {"never"}, [*rows, "e-0"]) == {"never": 0, "e-0": 2}, "it sees no loss"
    report = tenant.reconciled()
    assert report["balanced"], report
    assert (report["landed"], report["duplicates"], report["dead_letters"]) == (EVENTS, EVENTS, 1)
    page = httpx.get(f"http://{tenant.deployment.network.address('control')}:3000/healthz", trust_env=False)
    assert page.status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("host", ["spark", "control", "front", "data"])
def test_a_host_that_is_gone_and_comes_back_loses_nothing(host: str, tenant: Tenant) -> None:
    """All of its processes end at once, in the middle of what they do, and its address is gone."""
    with tenant.sending() as sent:
        tenant.deployment.network.hosts[host].switch_off()
        time.sleep(FAULT_S)
        tenant.deployment.switch_on(host)
        sent()
    tenant.judge(f"{host} gone for {FAULT_S} s")


@pytest.mark.slow
@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize(
    "pair", [("control", "data"), ("front", "data"), ("spark", "data"), ("control", "spark")], ids="-".join
)
def test_packets_between_two_hosts_that_are_lost_for_a_while_lose_no_event(
    pair: tuple[str, str], ways: int, tenant: Tenant
) -> None:
    """In one direction, from the first to the second, or in both. Connections stay open, and wait."""
    left, right = pair
    network = tenant.deployment.network
    with tenant.sending() as sent, ExitStack() as faults:
        faults.enter_context(network.lost(left, right))
        if ways == 2:
            faults.enter_context(network.lost(right, left))
        time.sleep(FAULT_S)
        faults.close()
        sent()
    tenant.judge(f"all packets from {left} to {right}{' and back' * (ways - 1)} lost for {FAULT_S} s")


def test_the_page_has_the_services_of_the_file_where_the_test_runs_them() -> None:
    page = (ROOT / "docs" / "production.md").read_text()
    topology = re.findall(r"^\| (\w+) \| (`.*`) \| .* \| .* \|$", page, re.MULTILINE)
    hosts_of = {name.strip("`"): host for host, names in topology for name in names.split(", ")}
    assert hosts_of == PLACEMENT
    variables = composed._VARIABLE.findall((ROOT / "docker" / "compose.yaml").read_text())
    services = composed.read_services({name: "" for name, *_ in variables})
    assert services.keys() == PLACEMENT.keys()
    commands = re.findall(r"^\| (\w+) \| `(python .*?)`.* \|$", page, re.MULTILINE)
    started = [
        (PLACEMENT[name], " ".join(one["command"])) for name, one in services.items() if name not in DATA
    ]
    assert sorted(commands) == sorted(started)
