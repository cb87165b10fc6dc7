"""All of Pulse on separate hosts, which share nothing but the network."""

import random
import re
import time
from collections.abc import Iterator

import httpx
import pytest

from chaos.hosts import composed
from chaos.hosts.composed import ROOT, Deployment
from chaos.hosts.deployed import FRONTS, PLACEMENT, SECOND, deployed
from chaos.hosts.faults import Fault, Kind, all_faults, draw
from chaos.hosts.network import missing
from chaos.hosts.tenant import EVENTS, Tenant, differences, make_tenant

DATA = ("postgres", "kafka", "minio")
FAULT_S = 20
LINKS = [("control", "data"), ("front", "data"), ("spark", "data"), ("control", "spark")]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    if reason := missing():
        pytest.skip(f"hosts cannot be made here: {reason}")
    with deployed(tmp_path_factory.mktemp("over-hosts"), tmp_path_factory.mktemp("image")) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def tenant(deployment: Deployment) -> Iterator[Tenant]:
    with make_tenant(deployment) as tenant:
        yield tenant


@pytest.mark.slow
def test_events_sent_to_one_host_are_rows_in_the_store_of_another_exactly_once(tenant: Tenant) -> None:
    tenant.send()
    seconds = tenant.settle()
    print(f"{EVENTS} events, each sent twice, were rows after {seconds:.0f} s")
    rows = tenant.ids()
    assert differences(tenant.sent, rows) == {}
    assert differences(tenant.sent | {"never"}, [*rows, "e-0"]) == {"never": 0, "e-0": 2}, "it sees no loss"
    report = tenant.reconcile()
    assert report["balanced"], report
    assert (report["landed"], report["duplicates"], report["dead_letters"]) == (EVENTS, EVENTS, 1)
    page = httpx.get(f"http://{tenant.deployment.network.address('control')}:3000/healthz", trust_env=False)
    assert page.status_code == 200


@pytest.mark.slow
def test_a_change_at_one_front_host_is_seen_at_the_other(tenant: Tenant) -> None:
    first, second = tenant.clients
    issued = first.post("/v1/keys", json={"name": "brief", "scopes": ["read"]}).raise_for_status().json()
    brief = {"Authorization": f"Bearer {issued['key']}"}
    assert second.get("/v1/datasets", headers=brief).status_code == 200
    first.delete(f"/v1/keys/{issued['key_id']}").raise_for_status()
    deadline = time.monotonic() + 60
    while second.get("/v1/datasets", headers=brief).status_code != 401:
        assert time.monotonic() < deadline, "a revoked key opens the other host"
        time.sleep(0.05)
    event = {"event_id": "both", "dataset": "orders", "timestamp": "2026-11-19T10:00:00Z"}
    for client in tenant.clients:
        client.post("/v1/collect", json={**event, "data": {"country": "DE"}}).raise_for_status()
    tenant.sent.add("both")
    tenant.settle()
    assert differences(tenant.sent, tenant.ids()) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        *(Fault(Kind.OFF, host) for host in ("spark", "control", "front", "data")),
        *(Fault(kind, *link) for link in LINKS for kind in (Kind.LOST, Kind.CUT)),
    ],
    ids=str,
)
def test_a_fault_of_a_host_or_a_link_loses_no_event(fault: Fault, tenant: Tenant) -> None:
    """A host that is gone has lost its processes and its address. Lost packets cause no error."""
    with tenant.sending() as settle:
        with fault.happening(tenant.deployment):
            time.sleep(FAULT_S)
        settle()
    refused = dict(tenant.refusals)
    print(f"{fault}: {len(tenant.sent)} rows {tenant.recovered_s:.0f} s after; refused meanwhile: {refused}")
    assert tenant.findings() == []


def test_faults_are_drawn_by_their_seed_and_are_possible() -> None:
    for seed in range(200):
        for at_once in (1, 2):
            chosen, again = (draw(random.Random(seed), at_once) for _ in range(2))  # noqa: S311
            assert chosen == again
            assert len(set(chosen)) == at_once
            stopped = {fault.host for fault in chosen if fault.kind is Kind.OFF}
            assert not any(fault.other in stopped for fault in chosen)
    assert {fault.kind for fault in all_faults()} == set(Kind)
    assert not [fault for fault in all_faults() if {fault.host, fault.other} == set(FRONTS)]


def test_the_page_has_the_services_of_the_file_where_the_test_runs_them() -> None:
    page = (ROOT / "docs" / "production.md").read_text()
    topology = re.findall(r"^\| (\w+) \| (`.*`) \| .* \| .* \|$", page, re.MULTILINE)
    hosts_of = {name.strip("`"): host for host, names in topology for name in names.split(", ")}
    assert hosts_of == PLACEMENT
    assert SECOND.keys() == {name for name, host in PLACEMENT.items() if host == "front"}
    variables = composed._VARIABLE.findall((ROOT / "docker" / "compose.yaml").read_text())
    services = composed.read_services({name: "" for name, *_ in variables})
    assert services.keys() == PLACEMENT.keys()
    commands = re.findall(r"^\| (\w+) \| `(python .*?)`.* \|$", page, re.MULTILINE)
    started = [
        (PLACEMENT[name], " ".join(one["command"])) for name, one in services.items() if name not in DATA
    ]
    assert sorted(commands) == sorted(started)
