"""docker/observability: the dashboard and the alerts are made of what /metrics has, and the alerts fire."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from support import promtool
from support.http import Caller, sample

from pulse_api.http import measures

FOLDER = Path(__file__).parents[2] / "docker" / "observability"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana" / "pulse.json").read_text())
RULES = [
    rule for group in yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"] for rule in group["rules"]
]
NAME = re.compile(r"\bpulse_[a-z_]+")


def queries() -> Iterator[str]:
    """Every expression of PromQL in the dashboard and the rules."""
    yield from (rule["expr"] for rule in RULES)
    yield from (target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ()))
    yield from (each["definition"] for each in DASHBOARD["templating"]["list"] if "definition" in each)


def test_every_metric_is_one_that_pulse_has(caller: Caller, operator: httpx.Client) -> None:
    assert caller.collect(sample()).status_code == 202  # a histogram has its parts once there is a request
    answer = operator.get("/metrics")
    assert answer.status_code == 200
    has = set(re.findall(r"^(?:# TYPE )?(pulse_[a-z_]+)", answer.text, re.MULTILINE))
    assert has >= {"pulse_lag_events", "pulse_events_total", "pulse_http_request_seconds_bucket"}
    asked = {name for query in queries() for name in NAME.findall(query)}
    assert len(asked) > 15
    assert asked <= has


def test_every_label_is_one_of_its_metrics(caller: Caller, operator: httpx.Client) -> None:
    assert caller.collect(sample()).status_code == 202
    measures.CONNECTIONS_REFUSED.labels("test").inc(0)
    text = operator.get("/metrics").text
    has = set(re.findall(r'[{,]([a-z_]+)="', text)) | {"instance", "job", "partition", "reason"}
    for query in queries():
        grouped = {
            name.strip() for each in re.findall(r"(?:by|on) \(([^)]*)\)", query) for name in each.split(",")
        }
        matched = set(re.findall(r"[{,]\s*([a-z_]+)=", query))
        assert grouped | matched <= has, query


def test_every_alert_says_what_to_do_and_is_tested() -> None:
    tested = {
        each["alertname"]
        for test in yaml.safe_load((FOLDER / "rules_test.yaml").read_text())["tests"]
        for each in test["alert_rule_test"]
        if each["exp_alerts"]
    }
    assert {rule["alert"] for rule in RULES} == tested
    for rule in RULES:
        assert rule["annotations"].keys() == {"summary", "fix"}
        assert rule["labels"]["severity"] in ("critical", "warning")


@pytest.mark.parametrize(
    "arguments", [("check", "rules", "--lint-fatal", "rules.yaml"), ("test", "rules", "rules_test.yaml")]
)
def test_promtool_agrees(arguments: tuple[str, ...]) -> None:
    if (program := promtool.found()) is None:
        pytest.skip("there is no promtool: `make promtool` builds it")
    done = subprocess.run([program, *arguments], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
