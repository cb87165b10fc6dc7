"""A tenant whose clients send through both front hosts while something fails; the verdict on its rows."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import httpx

from chaos.hosts import composed
from chaos.hosts.composed import Deployment
from chaos.hosts.deployed import FRONTS
from chaos.waiting import PATIENCE_S, wait

EVENTS, REQUEST = 2_000, 250
BEFORE_S, PAUSE_S = 5, 0.2
DATASET = {"slug": "orders", "schema_uri": "pulse://acme/orders/1", "on_invalid": "dead_letter"}
SCHEMA = {"name": "orders", "fields": {"country": "string", "amount": "number"}, "required": ["country"]}
SCOPES = ("collect", "read", "manage", "lake:read")
READ = """
import json
print(json.dumps(catalog.load_table("events.orders").scan().to_arrow()["id"].to_pylist()))
"""


@dataclass
class Tenant:
    """A tenant of the deployment, and what it has sent, as its clients know it."""

    deployment: Deployment
    clients: list[httpx.Client]
    """One for each front host; a request that is refused is repeated at the next one."""
    key: str
    sent: set[str] = field(default_factory=set)
    dead: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    """Answers and errors of the requests that were not accepted."""
    recovered_s: float = 0.0
    """Seconds from the end of the latest fault until everything was a row."""

    def send(self, number: int = EVENTS) -> None:
        """Send events and one that cannot land, each twice, until all of them are accepted."""
        first = len(self.sent)
        ids = [f"e-{n}" for n in range(first, first + number)]
        events = [event(name, {"country": "DE", "amount": 0.5}) for name in ids]
        for start in range(0, number, REQUEST):
            self._send_until_accepted(events[start : start + REQUEST])
            self._send_until_accepted(events[start : start + REQUEST])
        self._send_until_accepted([event(f"bad-{first}", {"amount": 0.5})])
        self.sent |= set(ids)
        self.dead += 1

    def _send_until_accepted(self, events: list[dict[str, Any]]) -> None:
        self.clients.append(self.clients.pop(0))
        clients = cycle(self.clients)

        def send() -> bool:
            try:
                answer = next(clients).post("/v1/collect", json=events)
            except httpx.TransportError as error:
                self.refusals[type(error).__name__] += 1
                return False
            if answer.status_code != 202:
                self.refusals[str(answer.status_code)] += 1
            return answer.status_code == 202

        wait(send, f"the events are not accepted: {self.refusals}", 2 * PATIENCE_S)

    @contextmanager
    def sending(self) -> Iterator[Callable[[], None]]:
        """Send events while the block runs, in which something fails.

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

        def settle() -> None:
            began = time.monotonic()
            ended.set()
            thread.join()
            self.settle()
            self.recovered_s = time.monotonic() - began

        try:
            yield settle
        finally:
            ended.set()
            thread.join()

    def settle(self) -> float:
        """Wait until everything sent is a row; returns the seconds."""

        def settled() -> bool:
            self.deployment.mend()
            time.sleep(1)
            return self.count() == len(self.sent)

        return wait(settled, "not all events are rows", 2 * PATIENCE_S)

    def count(self) -> int | None:
        """Number of rows, by SQL through a front host; None while none can be asked."""
        for client in self.clients:
            try:
                answer = client.post("/v1/sql", json={"sql": "SELECT count(*) AS rows FROM orders"})
            except httpx.TransportError:
                continue
            if answer.status_code == 200:
                return int(answer.json()["rows"][0]["rows"])
        return None

    def findings(self) -> list[str]:
        """Compare what was sent with the rows, as an engine reads them, and with the ledger."""
        wrong = [f"{name}: {rows} rows" for name, rows in differences(self.sent, self.ids()).items()]
        report = self.reconcile()
        if not report["balanced"]:
            wrong.append(f"the ledger is not balanced: {json.dumps(report)}")
        counts = report["landed"], report["dead_letters"]
        if counts != (len(self.sent), self.dead):
            wrong.append(f"{counts} landed and are dead letters, {(len(self.sent), self.dead)} were sent")
        return wrong

    def reconcile(self) -> dict[str, Any]:
        """The report of `pulse reconcile` on the host `control`."""
        done = self.deployment.execute("dagster-code", ["pulse", "reconcile", "acme", "--json"])
        report: dict[str, Any] = json.loads(done.stdout)["tenants"][0]
        return report

    def ids(self) -> list[str]:
        """The id of each row, read by an engine on a host that has nothing but a key and an address."""
        connect = ["pulse", "lake", "connect", "acme", "--engine", "pyiceberg", "--key", self.key]
        lines = self.deployment.execute("lake", connect).stdout.splitlines()
        script = "\n".join([*(line for line in lines if not line.startswith("print")), READ])
        done = self.deployment.network.hosts["engine"].run([f"{composed.IMAGE}/bin/python", "-c", script])
        assert not done.returncode, done.stderr
        ids: list[str] = json.loads(done.stdout)
        return ids


@contextmanager
def make_tenant(deployment: Deployment) -> Iterator[Tenant]:
    """A tenant with a dataset, made through the API, and a client at each front host."""
    created = deployment.execute("api", ["pulse", "key", "operator", "create"])
    operator = {"Authorization": f"Bearer {created.stdout.split()[0]}"}
    with ExitStack() as opened:
        clients = [
            opened.enter_context(
                httpx.Client(
                    base_url=f"http://{deployment.network.address(front)}:8000", timeout=60, trust_env=False
                )
            )
            for front in FRONTS
        ]
        first = clients[0]
        first.post("/v1/tenants", headers=operator, json={"slug": "acme"}).raise_for_status()
        scopes = {"name": "all", "scopes": SCOPES}
        key = first.post("/v1/tenants/acme/keys", headers=operator, json=scopes).raise_for_status().json()
        for client in clients:
            client.headers["Authorization"] = f"Bearer {key['key']}"
        first.post("/v1/schemas", json=SCHEMA).raise_for_status()
        first.post("/v1/datasets", json=DATASET).raise_for_status()
        yield Tenant(deployment, clients, key["key"])


def event(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """An event of the dataset."""
    return {"event_id": name, "dataset": "orders", "timestamp": "2026-11-19T10:00:00Z", "data": data}


def differences(sent: set[str], rows: list[str]) -> dict[str, int]:
    """Ids of which there is not exactly one row, with the number of rows."""
    counted = Counter(rows)
    return {name: counted[name] for name in sent | counted.keys() if counted[name] != (name in sent)}
