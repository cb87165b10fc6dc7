"""docker/observability: the dashboard and the alerts are made of what /metrics has, and the alerts fire."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import httpx
import pytest
import yaml
from support import promtool
from support.here import ingest_here as ingest
from support.http import Caller, sample, served

from chaos.sources import SOURCE, database
from chaos.waiting import wait
from pulse_api.http import process_metrics
from pulse_pipelines import pipes
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.registry import keys

FOLDER = Path(__file__).parents[2] / "docker" / "observability"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana" / "pulse.json").read_text())
RULES = [
    rule for group in yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"] for rule in group["rules"]
]
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER.parent / "compose.yaml").read_text())["services"]
PIPE = {"pipe": "planes", "source": SOURCE, "table": "planes", "dataset": "planes"}
NAME = re.compile(r"\bpulse_[a-z_]+")


def queries() -> Iterator[str]:
    """Every expression of PromQL in the dashboard and the rules."""
    yield from (rule["expr"] for rule in RULES)
    yield from (target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ()))
    yield from (
        variable["definition"] for variable in DASHBOARD["templating"]["list"] if "definition" in variable
    )


def test_every_metric_is_one_that_pulse_has(caller: Caller, operator: httpx.Client) -> None:
    assert caller.collect(sample()).status_code == 202  # a histogram has its parts once there is a request
    answer = operator.get("/metrics")
    assert answer.status_code == 200
    has = set(re.findall(r"^(?:# TYPE )?(pulse_[a-z_]+)", answer.text, re.MULTILINE))
    assert has >= {"pulse_lag_events", "pulse_events_total", "pulse_http_request_seconds_bucket"}
    names = {name for query in queries() for name in NAME.findall(query)}
    assert len(names) > 15
    assert names <= has


def test_every_label_is_one_of_its_metrics(caller: Caller) -> None:
    assert caller.collect(sample()).status_code == 202
    process_metrics.CONNECTIONS_REFUSED.labels("test").inc(0)
    ingest(caller.owner)
    tenant = caller.owner.tenant
    with database(tenant) as source:
        source.execute("CREATE TABLE planes (tail text PRIMARY KEY)")
        pipes.create(tenant, definition(PIPE))
        # Of many tenants they take longer than an answer waits; until then a new server shows none.
        with served() as api, api.client(keys.issue_operator_key("metrics").text) as fresh:
            wait(lambda: f'{{pipe="planes",tenant="{tenant.slug}"}}' in fresh.get("/metrics").text, "no pipe")
            text = fresh.get("/metrics").text
        pipes.delete(tenant, "planes")
    has = set(re.findall(r'[{,]([a-z_]+)="', text)) | {"instance", "job", "partition", "reason"}
    for query in queries():
        grouped = {
            name.strip()
            for labels in re.findall(r"(?:by|on) \(([^)]*)\)", query)
            for name in labels.split(",")
        }
        matched = set(re.findall(r"[{,]\s*([a-z_]+)=", query))
        assert grouped | matched <= has, query


def test_each_alert_has_a_fix_and_a_test() -> None:
    tested = {
        case["alertname"]
        for test in yaml.safe_load((FOLDER / "rules_test.yaml").read_text())["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    assert {rule["alert"] for rule in RULES} == tested
    for rule in RULES:
        assert rule["annotations"].keys() == {"summary", "fix"}
        assert rule["labels"]["severity"] in ("critical", "warning")


def mounted(service: str) -> dict[str, Path]:
    """Files of this folder in a container, by their path there."""
    mounts = (volume.split(":") for volume in COMPOSE[service]["volumes"] if volume.startswith("./"))
    return {target: FOLDER.parent / source for source, target, _ in mounts}


def test_prometheus_finds_its_files_its_key_and_the_api() -> None:
    files, service = mounted("prometheus"), COMPOSE["prometheus"]
    (place,) = (
        option.partition("=")[2] for option in service["command"] if option.startswith("--config.file=")
    )
    config = yaml.safe_load(files[place].read_text())
    for name in config["rule_files"]:
        assert files[str(PurePosixPath(place).parent / name)].is_file()
    (job,) = config["scrape_configs"]
    (secret,) = service["secrets"]
    assert job["authorization"] == {"credentials_file": f"/run/secrets/{secret}"}
    ((target,),) = (static["targets"] for static in job["static_configs"])
    assert target == f"api:{COMPOSE['api']['environment']['PULSE_API__HEALTH_PORT']}"


def test_grafana_finds_its_dashboard_and_prometheus() -> None:
    files, service = mounted("grafana"), COMPOSE["grafana"]
    provisioned = {
        PurePosixPath(place).parts[-2]: yaml.safe_load(path.read_text())
        for place, path in files.items()
        if place.startswith("/etc/grafana/provisioning/")
    }
    assert {kind: document["apiVersion"] for kind, document in provisioned.items()} == {
        "dashboards": 1,
        "datasources": 1,
    }
    (provider,) = provisioned["dashboards"]["providers"]
    assert files[f"{provider['options']['path']}/pulse.json"] == FOLDER / "grafana" / "pulse.json"
    (source,) = provisioned["datasources"]["datasources"]
    host, _, port = source["url"].removeprefix("http://").partition(":")
    assert any(f":{port}/" in word for word in COMPOSE[host]["healthcheck"]["test"])
    assert source["isDefault"]
    used = {json.dumps(panel["datasource"]) for panel in DASHBOARD["panels"] if "datasource" in panel}
    assert used == {json.dumps({"type": source["type"], "uid": "${datasource}"})}
    (secret,) = service["secrets"]
    assert service["environment"] == {"GF_SECURITY_ADMIN_PASSWORD__FILE": f"/run/secrets/{secret}"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "--syntax-only", "prometheus.yaml"),
        ("check", "rules", "--lint-fatal", "rules.yaml"),
        ("test", "rules", "rules_test.yaml"),
    ],
)
def test_promtool_agrees(arguments: tuple[str, ...]) -> None:
    if (program := promtool.find_program()) is None:
        pytest.skip("there is no promtool: `make promtool` builds it")
    done = subprocess.run([program, *arguments], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
