"""Command `chaos upgrade`: replaces the services of an earlier version one by one under load.

The earlier version gets tenants, events and rows. Then this version's migrations run, the earlier services
work on the new schema, and one after the other is replaced; API and catalog by a second process before their
first one ends. Senders, readers and engines see no error but a 503 with Retry-After, and the oracle accounts
for every event. Each run makes a new stack in .pulse-upgrade and removes it afterwards.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated
from uuid import UUID

import orjson
import typer
from rich.console import Console

from chaos import oracle
from chaos.load import Load
from chaos.oracle import Finding
from chaos.sent import Sent
from chaos.stack import Kind, Stack, stack
from chaos.surroundings import pulse
from chaos.traffic import Traffic, settled_until
from chaos.upgrade.clients import Balanced, Front, Read, reading
from chaos.upgrade.versions import Version, Versions, before_newest_migration, commit_of
from chaos.waiting import wait
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import spark
from pulse_resources.local import front_ends, ports, state
from pulse_resources.local.layout import Layout
from pulse_resources.local.service import responds
from pulse_resources.settings import load_settings

app = typer.Typer(add_completion=False, help=__doc__)
console = Console(highlight=False)
HOME = Path(".pulse-upgrade").absolute()
MODULES = {
    "spark": "pulse_pipelines.runtime.spark_daemon",
    "dagster-code": "pulse_pipelines.runtime.code_server",
    "dagster-webserver": "pulse_pipelines.defs.control_room.server",
    "dagster-daemon": "pulse_pipelines.runtime.daemon",
    "api": front_ends.API,
    "lake": front_ends.LAKE,
}
"""Modules of the services, in the order in which they are replaced."""
FRONTS = ("api", "lake")
MAKE_TENANT = """
from chaos.batches import make_tenant
tenant = make_tenant()
print(tenant.tenant_id, tenant.slug)
"""
SCOPES = ("collect", "read", "lake:read")


@app.callback(invoke_without_command=True)
def run(
    earlier: Annotated[
        str,
        typer.Option(
            "--from", help="Commit of the earlier version.", show_default="before the newest migration"
        ),
    ] = "",
    to: Annotated[str, typer.Option(help="Commit of the later version.")] = "HEAD",
    seconds: Annotated[
        float, typer.Option(help="Of load before the first replacement and after each.", min=1.0)
    ] = 15.0,
    seed: Annotated[int, typer.Option(help="Of the events.")] = 1,
) -> None:
    """Upgrade under load, and print what became of it; exit code 1 when anything is not as it must be.

    Example: python -m chaos upgrade --from HEAD~20
    """
    shutil.rmtree(HOME, ignore_errors=True)
    os.environ.pop("PYTHONPATH", None)  # else each version imports what it names
    versions = Versions(HOME / "versions")
    try:
        commits = [commit_of(name) for name in (earlier or before_newest_migration(), to)]
    except subprocess.CalledProcessError as error:
        raise typer.BadParameter("this repository has no such commit") from error
    old, new = map(versions.install, commits)
    console.print(f"from {old.commit[:8]} to {new.commit[:8]}: starting the earlier version")
    versions.make_current(old)
    with stack(HOME / "stack", Kind.DEFAULTS, PULSE_INGEST__FLUSH_SECONDS="3", **old.environment) as running:
        findings = upgrade(running, versions, old, new, seconds, seed)
    for finding in findings:
        console.print(f"  {finding}", markup=False, soft_wrap=True)
    console.print("FAILED" if findings else "passed")
    shutil.rmtree(HOME, ignore_errors=True)
    raise typer.Exit(1 if findings else 0)


def upgrade(
    running: Stack, versions: Versions, old: Version, new: Version, seconds: float, seed: int
) -> Sequence[Finding]:
    """Upgrade a running stack of the earlier version; returns what was not as it must be."""
    fronts = {name: Front([url]) for name, url in _urls().items()}
    tenants = [_make_tenant(old, running) for _ in range(3)]
    keys = {tenant.slug: _issue_key(tenant) for tenant in tenants}
    collected = Balanced(tenants[0], key=keys[tenants[0].slug], front=fronts["api"])
    owners: list[tuple[Sent, Load]] = [(collected, Load(seed, bad=0))]
    owners += [(Sent(tenant), Load(seed + number)) for number, tenant in enumerate(tenants[1:], 1)]
    traffic = Traffic(owners)
    with traffic.flowing():
        time.sleep(seconds)
        settled_until(traffic.sent)
        console.print(f"the earlier version has rows of {len(tenants)} tenants; migrating")
        with reading(list(_reads(fronts, tenants[0], keys[tenants[0].slug]))):
            versions.make_current(new)
            new.run("-m", "pulse_resources.local.prepare", "postgres", "minio", "kafka", **running.by_proxy)
            console.print("the earlier version on the new schema")
            time.sleep(seconds)
            settled_until(traffic.sent)
            for name in MODULES:
                took = _replace(running, fronts, new, name)
                console.print(f"{name} replaced in {took:.1f} s")
                if name == "spark":  # an earlier code server may not know how its tasks run there
                    continue
                time.sleep(seconds)
                settled_until(traffic.sent)
    recovered = settled_until(traffic.sent)
    console.print(f"everything is settled {recovered:.1f} s after the last event")
    findings = [*_not_replaced(versions, new), *_failed_requests(fronts, tenants[0])]
    with spark.session() as session:
        findings += oracle.find_violations(traffic.sent, session)
    events = sum(len(sender.events) for sender in traffic.sent)
    console.print(f"{events:,} messages accounted for")
    return findings


def _not_replaced(versions: Versions, new: Version) -> Iterator[Finding]:
    for name, module in MODULES.items():
        if not versions.started(new, module):
            yield Finding("not replaced", "all", name)


def _failed_requests(fronts: Mapping[str, Front], tenant: Tenant) -> Iterator[Finding]:
    for name, front in fronts.items():
        for (subject, ended), times in sorted(front.answers.items()):
            console.print(f"{name}: {subject}: {ended}: {times}", markup=False)
        for subject, ended, times in front.unexpected():
            yield Finding("request failed", tenant.slug, f"{name}: {subject}: {ended}: {times} times")


def _urls() -> Mapping[str, str]:
    settings = load_settings()
    return {"api": front_ends.api_url(settings), "lake": front_ends.lake_url(settings)}


def _make_tenant(old: Version, running: Stack) -> Tenant:
    tenant_id, slug = old.run("-c", MAKE_TENANT, **running.by_proxy).split()
    return Tenant(UUID(tenant_id), slug)


def _issue_key(tenant: Tenant) -> str:
    scopes = [word for scope in SCOPES for word in ("--scope", scope)]
    answer = orjson.loads(pulse("key", "create", tenant.slug, *scopes, "--json").stdout)
    return str(answer["key"])


def _reads(fronts: Mapping[str, Front], tenant: Tenant, key: str) -> Iterator[Read]:
    for subject, path in (
        ("list datasets", "/v1/datasets"),
        ("preview", "/v1/datasets/orders/preview"),
        ("dead letters", "/v1/dead-letters"),
    ):
        yield Read(fronts["api"], subject, "GET", path, key)
    query: dict[str, object] = {"sql": "SELECT count(*) AS n, max(amount) AS most FROM orders"}
    yield Read(fronts["api"], "SQL", "POST", "/v1/sql", key, query)
    yield Read(fronts["lake"], "configure an engine", "GET", "/v1/config", key)
    yield Read(fronts["lake"], "load a table", "GET", "/v1/namespaces/events/tables/orders", key)


def _replace(running: Stack, fronts: Mapping[str, Front], new: Version, name: str) -> float:
    """End a service, whose supervisor starts it again; returns the seconds until it is up."""
    began = time.monotonic()
    with ExitStack() as beside:
        if name in FRONTS:
            beside.enter_context(_second_process(running, fronts[name], new, name))
        before = _process(running, name)
        running.end(name, signal.SIGTERM)
        wait(lambda: _process(running, name) not in (before, None), f"{name} is not up again")
    return time.monotonic() - began


def _process(running: Stack, name: str) -> int | None:
    """Number of a service's process; None: it is not up."""
    current = state.read(Layout(running.home / "main"))
    service = current.services[name] if current else None
    return service.process.pid if service and service.phase == "up" and service.process else None


@contextmanager
def _second_process(running: Stack, front: Front, new: Version, name: str) -> Iterator[None]:
    """A second process of a service while the block runs; it gets what the first does not take."""
    port = ports.choose_any(())
    health = ports.choose_any((port,))
    variables = {f"PULSE_{name.upper()}__PORT": str(port), f"PULSE_{name.upper()}__HEALTH_PORT": str(health)}
    with new.begin("-m", MODULES[name], **running.by_proxy, **variables) as process:
        try:
            ready = responds(f"http://127.0.0.1:{health}/readyz")
            wait(ready, f"the second process of {name} is not ready")
            front.urls.append(f"http://127.0.0.1:{port}")
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
            front.urls.pop()
