"""deploy/helm: the chart, docker/compose.yaml and the code have one list of services and settings."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import SecretStr
from support.charts import CHART, EXAMPLES, merge_values, read_yaml, variables

from chaos.hosts.composed import DOCKERFILE, ROOT
from pulse_api.http.server import WATCHED
from pulse_pipelines.defs.control_room.guard import HEALTH
from pulse_resources.local.provision import DEFAULT_PORTS
from pulse_resources.settings import Settings, load_settings
from pulse_resources.settings.setting_names import fields, variable

TABLE = read_yaml(CHART / "services.yaml")
SERVICES: dict[str, dict[str, Any]] = TABLE["services"]
COMPOSE = {
    name: service
    for name, service in read_yaml(ROOT / "docker" / "compose.yaml")["services"].items()
    if service["image"] == "pulse"
}
MINIMAL = merge_values(CHART / "ci" / "minimal-values.yaml")
SCHEMA = jsonschema.Draft7Validator(read_yaml(CHART / "values.schema.json"))
HELPERS = (CHART / "templates" / "_helpers.tpl").read_text()
PAGE = (ROOT / "docs" / "production.md").read_text()
CHART_ALONE = {
    "HOME",  # the root file system is read-only
    "PULSE_KAFKA__SASL_MECHANISM",  # compose has the default
    "PULSE_SPARK__PARALLELISM",  # containers of compose see the machine's cores, and those of a pod a node's
    "PULSE_SPARK__TOKEN",  # part of PULSE_SPARK__REMOTE in compose, where secrets are values
}


def all_variables(service: str) -> set[str]:
    """Names that the values have for a service, whether or not they are empty."""
    filled = {name: value or "x" for name, value in MINIMAL["settings"].items()}
    own = {name: value or "x" for name, value in MINIMAL["services"][service]["settings"].items()}
    services = MINIMAL["services"] | {service: {"settings": own}}
    return set(variables(TABLE, {**MINIMAL, "settings": filled, "services": services}, service))


def test_services_and_commands_are_those_of_compose() -> None:
    assert {name: service["command"] for name, service in SERVICES.items()} == {
        name: service["command"] for name, service in COMPOSE.items()
    }
    assert sorted(name for names in TABLE["pods"].values() for name in names) == sorted(SERVICES)
    assert set(MINIMAL["services"]) == set(SERVICES)


@pytest.mark.parametrize("service", SERVICES)
def test_variables_are_those_of_compose(service: str) -> None:
    composed = COMPOSE[service]["environment"]
    assert all_variables(service) - CHART_ALONE == set(composed)
    fixed = SERVICES[service].get("environment", {})
    differ = {name for name, value in fixed.items() if composed[name] != value}
    assert differ <= {"DAGSTER_DATA_DIR"}, "where logs stay: compose has one volume"


@pytest.mark.parametrize("service", SERVICES)
def test_the_code_accepts_the_variables_of_the_chart(
    service: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment = variables(TABLE, MINIMAL, service)
    monkeypatch.setenv("PULSE_HOME", str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value if isinstance(value, str) else "secret of many characters")
    load_settings.cache_clear()
    try:
        settings = load_settings()
    finally:
        load_settings.cache_clear()
    assert settings.spark.bearer == "secret of many characters"
    assert settings.spark.session_id
    assert settings.postgres.role_passwords.keys() == {
        "pulse_owner",
        "pulse_api",
        "pulse_pipeline",
        "pulse_catalog",
        "pulse_lake",
    }
    assert settings.object_store.by_role is (service == "lake")


def test_ports_and_probes_are_those_of_the_code() -> None:
    ports = {f"{name} {port}": number for name in SERVICES for port, number in ports_of(name).items()}
    assert ports == {
        "api http": DEFAULT_PORTS["api"],
        "api health": DEFAULT_PORTS["api_health"],
        "lake http": DEFAULT_PORTS["lake"],
        "lake health": DEFAULT_PORTS["lake_health"],
        "dagster-webserver web": DEFAULT_PORTS["webserver"],
        "spark connect": DEFAULT_PORTS["spark"],
    }
    for name, service in SERVICES.items():
        environment = service.get("environment", {})
        listens = {
            environment[key] for key in environment if key.startswith("PULSE_") and key.endswith("PORT")
        }
        assert listens in ({str(number) for number in ports_of(name).values()}, set()), name
        if name == "prepare":
            continue
        checked = COMPOSE[name]["healthcheck"]["test"]
        for probe in (service["live"], service.get("ready", service["live"])):
            if "exec" in probe:
                assert ["CMD", *probe["exec"]["command"]] == checked
            elif "tcpSocket" in probe:
                assert f", {ports_of(name)[probe['tcpSocket']['port']]})" in checked[-1]
            else:
                path = probe["httpGet"]["path"]
                assert path == HEALTH if probe["httpGet"]["port"] == "web" else path in WATCHED
        if ready := service.get("ready", {}).get("httpGet"):
            assert f":{ports_of(name)[ready['port']]}{ready['path']}'" in checked[-1]


def ports_of(service: str) -> dict[str, int]:
    ports: dict[str, int] = SERVICES[service].get("ports", {})
    return ports


def test_dagster_s_files_find_their_variables() -> None:
    files = "".join(path.read_text() for path in (ROOT / "dagster_home").glob("*.yaml"))
    for name in ("dagster-code", "dagster-webserver", "dagster-daemon"):
        assert set(re.findall(r"env: (\w+)", files)) <= set(SERVICES[name]["environment"])


def settings_of_the_code() -> Iterator[tuple[str, bool]]:
    """Each setting's variable, and whether it is a secret."""
    for section, name, field in fields(Settings.model_fields):
        yield variable(section, name), SecretStr.__name__ in str(field.annotation)


def test_secrets_and_no_other_settings_are_refused_as_values() -> None:
    known = dict(settings_of_the_code())
    assert {name for name in known if accepts(name)} == {name for name in known if not known[name]}
    assert sum(known.values()) > 10
    assert not accepts("PULSE_POSTGRES__ROLE_PASSWORDS__PULSE_API")
    assert not accepts("PULSE_SOURCE__ACME__SHOP")
    assert not accepts("PULSE_SPARK__REMOTE", "sc://spark:15002/;authorization=Bearer%20secret")


def accepts(name: str, value: str = "") -> bool:
    text = value or {"PULSE_OBJECT_STORE__ENDPOINT": "https://x", "PULSE_SPARK__REMOTE": "sc://x"}.get(
        name, "x"
    )
    return SCHEMA.is_valid(MINIMAL | {"settings": MINIMAL["settings"] | {name: text}})


def test_each_value_is_in_the_schema_and_each_setting_in_the_code() -> None:
    known = {name for name, _ in settings_of_the_code()} | {"OTEL_EXPORTER_OTLP_ENDPOINT"}
    for example in EXAMPLES:
        values = merge_values(example)
        SCHEMA.validate(values)
        setting_names = {*values["settings"], *values["secrets"]}
        setting_names |= {name for service in values["services"].values() for name in service["settings"]}
        assert {"__".join(name.split("__")[:2]) for name in setting_names} - known <= {"PULSE_SOURCE__ACME"}
    assert len(EXAMPLES) == 3
    assert not SCHEMA.is_valid(read_yaml(CHART / "values.yaml")), "addresses must be given"
    assert not SCHEMA.is_valid(MINIMAL | {"replicas": 2})


def test_connections_of_the_pods_are_those_of_the_page() -> None:
    topology = PAGE.partition("Who speaks to whom:")[0]
    hosts = dict(re.findall(r"^\| (data|control|spark|front) \| (`.*?`) \|", topology, re.MULTILINE))
    rows = dict(re.findall(r"^\| (control, front|spark) \| (Postgres.*?) \|$", PAGE, re.MULTILINE))
    words = {"Postgres": "postgres", "Kafka": "kafka", "the object store": "store", "Spark": "spark"}
    spoken: dict[str, set[str]] = {}
    for names, targets in rows.items():
        for host in names.split(", "):
            spoken[host] = {words[target] for target in targets.split(", ")}
    pod_of = {service: pod for pod, services in TABLE["pods"].items() for service in services}
    for host, targets in spoken.items():
        pods = {pod_of[name] for name in re.findall(r"`([\w-]+)`", hosts[host])}
        assert {target for pod in pods for target in TABLE["connections"][pod]} == targets, host
    assert set(spoken) == {"control", "front", "spark"}
    prepared = {"minio": "store"}
    steps = SERVICES["prepare"]["command"][3:]
    assert set(TABLE["connections"]["prepare"]) == {prepared.get(step, step) for step in steps}
    assert set(TABLE["connections"]) == set(TABLE["pods"])


def test_versions_and_users_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert read_yaml(CHART / "Chart.yaml")["appVersion"] == project["version"]
    released = project["version"].rpartition(".")[0]
    assert f"Version {released}, not published." in (ROOT / "README.md").read_text()
    user = re.search(r"--uid (\d+) pulse", DOCKERFILE)
    assert user
    assert f"runAsUser: {user[1]}\n" in HELPERS
    session = re.search(r"session_id=([\w-]+)", str(COMPOSE["api"]["environment"]["PULSE_SPARK__REMOTE"]))
    assert session
    assert f"session_id={session[1]}\n" in HELPERS


def test_the_page_has_the_secret_s_keys_and_real_values() -> None:
    section = PAGE.partition("\n## Kubernetes\n")[2].partition("\n## ")[0]
    listed = section.partition("`secret.env` has")[2].partition("\n\n")[0]
    keys = {place["key"] for place in MINIMAL["secrets"].values()}
    assert set(re.findall(r"`([\w-]+)`", listed)) - {"spark-token"} == keys - {"spark-token"}
    rows = re.findall(r"^\| (`.*?`) \| ", section, re.MULTILINE)
    for name in [name for row in rows for name in re.findall(r"`([^`]+)`", row)]:
        value: Any = MINIMAL
        for part in name.replace("<name>", "lake").split("."):
            value = value[part]
