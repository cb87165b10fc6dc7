"""docker/: everything that can be checked without an engine."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from pulse_resources.local import front_ends, kafka, minio_program, postgres
from pulse_resources.settings import load_settings
from pulse_resources.settings.service_settings import KafkaSettings

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
TEXT = (DOCKER / "compose.yaml").read_text()
COMPOSE = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
EXAMPLE = dict(
    line.split("=", 1)
    for line in (DOCKER / ".env.example").read_text().splitlines()
    if line and not line.startswith("#")
)


def substituted(value: str) -> str:
    """What compose would make of `${NAME}`, `${NAME:-default}` and `${NAME:?}`."""
    return re.sub(r"\$\{(\w+)[^}]*\}", lambda match: EXAMPLE[match[1]], value)


def test_variables_are_exactly_those_of_the_example() -> None:
    assert set(re.findall(r"\$\{(\w+)", TEXT)) == set(EXAMPLE)


def test_defaults_agree_with_the_example() -> None:
    defaults = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", TEXT))
    assert defaults == {name: EXAMPLE[name] for name in defaults}


def test_no_secret_has_a_default() -> None:
    secrets = {name for name in EXAMPLE if name.endswith(("PASSWORD", "TOKEN"))}
    assert secrets <= set(re.findall(r"\$\{(\w+):\?\}", TEXT))


def test_every_setting_exists_and_arrives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Settings built from each container's environment hold what the compose file says."""
    monkeypatch.setenv("PULSE_HOME", str(tmp_path))
    for name, service in SERVICES.items():
        variables = {
            key: substituted(value)
            for key, value in service.get("environment", {}).items()
            if key.startswith("PULSE_")
        }
        with monkeypatch.context() as patch:
            for key, value in variables.items():
                patch.setenv(key, value)
            load_settings.cache_clear()
            settings = load_settings()
        for key, value in variables.items():
            actual = reach(settings, key.removeprefix("PULSE_").lower().split("__"))
            assert actual == value, f"{key} of {name}"
    load_settings.cache_clear()


def reach(model: Any, path: list[str]) -> str:
    for part in path:
        if isinstance(model, BaseModel):
            assert part in type(model).model_fields, part
            model = getattr(model, part)
        else:
            model = model[part]
    if isinstance(model, bool):
        return str(model).lower()
    return model.get_secret_value() if hasattr(model, "get_secret_value") else str(model)


def test_versions_agree_with_the_embedded_stack() -> None:
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{kafka.VERSION}"
    assert minio_program.MODULE in DOCKERFILE
    binaries = postgres._wheel().name.removeprefix("pginstall")
    assert SERVICES["postgres"]["image"] == f"postgres:{binaries}"


def test_the_clusters_of_postgres_are_made_alike() -> None:
    """Without an encoding, `initdb` refuses the builtin locale."""
    arguments = SERVICES["postgres"]["environment"]["POSTGRES_INITDB_ARGS"].split()
    assert arguments == ["--auth-host=scram-sha-256", *postgres.CLUSTER]


def test_postgres_is_tuned_alike() -> None:
    command = SERVICES["postgres"]["command"]
    options = dict(option.split("=", 1) for option in command if "=" in option)
    embedded = dict(line.replace("'", "").split(" = ", 1) for line in postgres._CONFIGURATION.splitlines())
    assert options == {name: embedded[name] for name in options}


def test_kafka_is_configured_alike() -> None:
    embedded = dict(line.split("=", 1) for line in kafka._PROPERTIES.splitlines())
    properties = {
        key.removeprefix("KAFKA_").lower().replace("_", "."): value
        for key, value in SERVICES["kafka"]["environment"].items()
    }
    addresses = {"listeners", "listener.security.protocol.map", "log.dirs"}
    addresses |= {"advertised.listeners", "controller.quorum.voters"}
    user = KafkaSettings().username
    login = kafka._PLAIN_LOGIN.format(user=user, password="${KAFKA_PASSWORD:?}")
    values = {
        "user": user,
        "login": login,
        "controller_login": login,
        "mechanism": "PLAIN",
        "prefix": "plain",
    }
    embedded = {
        key.format(**values): value.format(**values)
        if any(f"{{{name}}}" in value for name in values)
        else value
        for key, value in embedded.items()
    }
    protocols = properties["listener.security.protocol.map"].split(",")
    assert {protocol.partition(":")[2] for protocol in protocols} == {"SASL_PLAINTEXT"}
    same = (properties.keys() & embedded.keys()) - addresses
    assert len(same) > 15
    assert {key: properties[key] for key in same} == {key: embedded[key] for key in same}


def test_the_api_runs_as_in_the_embedded_stack() -> None:
    service = SERVICES["api"]
    assert service["command"] == ["python", "-m", front_ends.API]
    (published,) = service["ports"]
    inside = published.rpartition(":")[2]
    assert service["environment"]["PULSE_API__PORT"] == inside
    watched = service["environment"]["PULSE_API__HEALTH_PORT"]
    assert f":{watched}/readyz" in service["healthcheck"]["test"][-1]


def test_python_is_the_one_that_the_lock_was_made_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest = re.search(r">=(\d+\.\d+)", project["requires-python"])
    assert lowest
    assert f"FROM python:{lowest[1]}-" in DOCKERFILE


def test_files_copied_into_the_image_exist_and_are_not_ignored() -> None:
    ignore = (DOCKER / "Dockerfile.dockerignore").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignore, source


def test_every_service_is_healthy_before_another_needs_it() -> None:
    for name, service in SERVICES.items():
        if name != "prepare":
            patience = service["healthcheck"]["start_period"], service["healthcheck"]["timeout"]
            assert patience == ("15m", "30s"), "a slow machine is none that failed"
        for needed, how in service.get("depends_on", {}).items():
            done = "service_completed_successfully" if needed == "prepare" else "service_healthy"
            assert how == {"condition": done}, f"{name} needs {needed}"


def test_nothing_is_open_to_other_machines() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(published) == 8
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_docker_accepts_the_file() -> None:
    docker = shutil.which("docker")
    plugin = docker and subprocess.run([docker, "compose", "version"], capture_output=True)
    if not docker or not plugin or plugin.returncode:
        pytest.skip("the docker command line with its compose plugin is not installed")
    files = ["-f", str(DOCKER / "compose.yaml"), "--env-file", str(DOCKER / ".env.example")]
    check = subprocess.run([docker, "compose", *files, "config", "--quiet"], capture_output=True, text=True)
    assert check.returncode == 0, check.stderr
