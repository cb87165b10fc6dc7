"""deploy/systemd: units, compose file, code and docs/production.md have one list of services and settings."""

import os
import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.docs import blocks

from chaos.hosts.composed import DOCKERFILE, ROOT, read_services
from pulse_api.http.server import ACCEPT_S, GRACE_S, OTHER_FILES
from pulse_resources.settings.api_settings import ApiSettings

UNITS = ROOT / "deploy" / "systemd"
EXAMPLES = UNITS / "env"
PLACEHOLDER = "REPLACE-ME"
Unit = Mapping[str, list[str]]
COMPOSED = {
    name: service
    for name, service in read_services(defaultdict(lambda: PLACEHOLDER)).items()
    if service["image"] == "pulse"
}
PAGE = (ROOT / "docs" / "production.md").read_text()
SECTION = PAGE.partition("\n## systemd\n")[2].partition("\n## ")[0]
SANDBOX = {
    "CapabilityBoundingSet": [""],
    "LockPersonality": ["yes"],
    "NoNewPrivileges": ["yes"],
    "PrivateDevices": ["yes"],
    "PrivateTmp": ["yes"],
    "ProtectClock": ["yes"],
    "ProtectControlGroups": ["yes"],
    "ProtectHome": ["yes"],
    "ProtectHostname": ["yes"],
    "ProtectKernelLogs": ["yes"],
    "ProtectKernelModules": ["yes"],
    "ProtectKernelTunables": ["yes"],
    "ProtectProc": ["invisible"],
    "ProtectSystem": ["strict"],
    "RestrictAddressFamilies": ["AF_UNIX AF_INET AF_INET6"],
    "RestrictNamespaces": ["yes"],
    "RestrictRealtime": ["yes"],
    "RestrictSUIDSGID": ["yes"],
    "SystemCallArchitectures": ["native"],
    "SystemCallErrorNumber": ["EPERM"],
    "SystemCallFilter": ["@system-service landlock_create_ruleset landlock_add_rule landlock_restrict_self"],
    "UMask": ["0077"],
}
PROGRAMS = ("analyze", "sysusers", "tmpfiles")
services = pytest.mark.parametrize("service", COMPOSED)
needs_systemd = pytest.mark.skipif(
    os.geteuid() != 0 or any(shutil.which(f"systemd-{name}") is None for name in PROGRAMS),
    reason="systemd's own checks need root and its programs (Debian: apt install systemd)",
)


def read_unit(service: str) -> Unit:
    """Values of a unit by their keys: of its own file, then of the folders for the beginnings of its name."""
    name = f"pulse-{service}.service"
    folders = (UNITS / f"{name[: match.end()]}.service.d" for match in re.finditer("-", name))
    files = sorted((path for folder in folders for path in folder.glob("*.conf")), key=lambda path: path.name)
    unit = defaultdict(list)
    for path in (UNITS / name, *files):
        for line in path.read_text().splitlines():
            key, equals, value = line.partition("=")
            if equals and not line.startswith("#"):
                unit[key].append(value)
    return unit


def read_variables(service: str) -> dict[str, str]:
    """Variables of the unit's own lines."""
    return dict(part.split("=", 1) for line in read_unit(service)["Environment"] for part in line.split())


def read_examples(service: str) -> dict[str, str]:
    """Variables of the examples of files that the unit does not start without."""
    lines: list[str] = []
    for file in read_unit(service)["EnvironmentFile"]:
        example = EXAMPLES / Path(file).name
        assert example.exists() is not file.startswith("-"), f"{file} is needed, or has no example"
        lines += example.read_text().splitlines() if example.exists() else []
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_every_service_has_a_unit_and_no_other() -> None:
    assert {path.name for path in UNITS.glob("*.service")} == {f"pulse-{name}.service" for name in COMPOSED}
    read = {Path(file).name for service in COMPOSED for file in read_unit(service)["EnvironmentFile"]}
    assert {path.name for path in EXAMPLES.iterdir()} <= read


@services
def test_commands_are_those_of_compose(service: str) -> None:
    (command,) = read_unit(service)["ExecStart"]
    python, *arguments = COMPOSED[service]["command"]
    assert shlex.split(command) == [f"/opt/pulse/bin/{python}", *arguments]


@services
def test_variables_are_those_of_compose(service: str) -> None:
    (image,) = re.findall(r"^ENV (.*)$", DOCKERFILE, re.MULTILINE)
    composed = dict(part.split("=", 1) for part in image.split()) | COMPOSED[service]["environment"]
    fixed, examples = read_variables(service), read_examples(service)
    unset = {name for line in read_unit(service)["UnsetEnvironment"] for name in line.split()}
    assert fixed.keys() | examples.keys() == composed.keys()
    assert not fixed.keys() & examples.keys()
    assert unset == {name for name, value in composed.items() if not value} - {"OTEL_EXPORTER_OTLP_ENDPOINT"}
    assert {name for name, value in fixed.items() if value != composed[name]} <= {"PULSE_HOME"}
    for name in examples.keys() - unset:
        pattern = re.escape(examples[name]).replace(re.escape(PLACEHOLDER), ".+").replace("https", "https?")
        assert re.fullmatch(pattern, composed[name]), name


@services
def test_each_address_and_each_secret_has_to_be_replaced(service: str) -> None:
    examples = read_examples(service)
    assert {name for name, value in examples.items() if PLACEHOLDER not in value} == {
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "PULSE_KAFKA__SECURITY_PROTOCOL",
        "PULSE_OBJECT_STORE__VENDING_BY_TENANT",
        "PULSE_POSTGRES__PORT",
        "PULSE_POSTGRES__REQUIRE_AUTH",
    }
    (check,) = read_unit(service)["ExecStartPre"]
    replaced = {name: value.replace(PLACEHOLDER, "secret") for name, value in examples.items()}
    assert run_check(check, replaced) == (0, "")
    for name, value in examples.items():
        if PLACEHOLDER in value:
            done = run_check(check, replaced | {name: f"secret-{value}"})
            assert done == (1, f"{name} has a placeholder: see /etc/pulse\n"), "the name, not the value"


def run_check(check: str, variables: Mapping[str, str]) -> tuple[int, str]:
    """Exit code and output of a command of a unit; the shell and systemd quote its line alike."""
    environment = {"PATH": os.environ["PATH"]} | variables
    done = subprocess.run(shlex.split(check), env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@services
def test_units_are_confined(service: str) -> None:
    unit = read_unit(service)
    assert {key: unit[key] for key in SANDBOX} == SANDBOX
    (user,) = unit["User"]
    assert f"\nu {user} " in (UNITS / "sysusers.conf").read_text()
    assert "AmbientCapabilities" not in unit
    assert "MemoryDenyWriteExecute" not in unit, "Java writes code"


def test_users_are_shared_by_dagster_s_services_alone() -> None:
    users = defaultdict(set)
    for service in COMPOSED:
        users[read_unit(service)["User"][0]].add(service)
    shared = [names for names in users.values() if len(names) > 1]
    assert shared == [{"dagster-code", "dagster-webserver", "dagster-daemon"}]


@services
def test_services_may_write_where_their_variables_lead(service: str) -> None:
    unit, variables = read_unit(service), read_variables(service)
    writable = {f"/var/lib/{name}" for name in unit["StateDirectory"]} | set(unit["ReadWritePaths"])
    named = {value for name, value in variables.items() if value.startswith("/") and "CACHE" not in name}
    named -= {"/var/lib/pulse-prepare"}  # preparation writes no file
    assert all(any(Path(path).is_relative_to(folder) for folder in writable) for path in named), named


@services
def test_units_start_again_for_ever_and_end_as_containers_do(service: str) -> None:
    unit = read_unit(service)
    assert unit["StartLimitIntervalSec"] == ["0"]
    assert unit["Restart"] == (["always"] if service != "prepare" else [])
    assert unit["WantedBy"] == (["multi-user.target"] if service != "prepare" else [])
    assert unit["Type"] == (["exec"] if service != "prepare" else ["oneshot"])
    assert unit["KillMode"] == ["mixed"]
    assert unit["OOMPolicy"] == ["continue"]
    (seconds,) = unit["TimeoutStopSec"]
    assert float(seconds) > ACCEPT_S + GRACE_S
    assert COMPOSED[service].get("stop_grace_period", f"{seconds}s") == f"{seconds}s"
    (files,) = unit["LimitNOFILE"]
    assert int(files) >= ApiSettings().max_connections + OTHER_FILES


def test_the_page_has_every_unit_with_host_and_health_check() -> None:
    topology = PAGE.partition("Who speaks to whom:")[0]
    rows = re.findall(r"^\| (?:control|spark|front) \| (`.*?`) \|.*\| (`.*?`) \|$", topology, re.MULTILINE)
    for placed, units in rows:
        expected = [f"pulse-{name}" for name in re.findall(r"`([\w-]+)`", placed)]
        assert re.findall(r"`([\w-]+)`", units) == expected
    assert sum(placed.count("`") // 2 for placed, _ in rows) == len(COMPOSED)
    checks = dict(re.findall(r"^\| `pulse-([\w-]+)` \| .* \| (.*) \|$", SECTION, re.MULTILINE))
    assert checks.keys() == COMPOSED.keys()
    for name, service in COMPOSED.items():
        if test := service.get("healthcheck", {}).get("test"):
            urls = re.findall(r"'(http://.*?)'", test[-1])
            port = re.findall(r"\('127.0.0.1', (\d+)\)", test[-1])
            assert (urls or port or [" ".join(test[1:])])[0] in checks[name], name


@needs_systemd
def test_the_page_s_commands_install_what_systemd_takes(tmp_path: Path) -> None:
    """All of them but those that need a manager: of these, `enable` is done as for an image."""
    system = tmp_path / "usr" / "lib" / "systemd" / "system"
    for folder in (system, tmp_path / "opt" / "pulse" / "bin", tmp_path / "bin"):
        folder.mkdir(parents=True)
    for target in ("sysinit", "basic", "network-online", "network", "shutdown", "multi-user"):
        (system / f"{target}.target").write_text(f"[Unit]\nDescription={target}\n")
    for program in ("opt/pulse/bin/python", "bin/sh"):
        (tmp_path / program).write_text("#!/bin/true\n")
        (tmp_path / program).chmod(0o755)
    commands = [block for block in blocks("production.md") if "systemd-" in block or "systemctl" in block]
    install, start, _, check = commands
    enabled = re.findall(r"^systemctl enable --now ([\w -]+?)(?: +#.*)?$", start, re.MULTILINE)
    script = [install, *(f'systemctl --root="$root" enable {names}' for names in enabled), check]
    text = "\n".join(script).replace("root=/ ", f"root={shlex.quote(str(tmp_path))} ")
    assert str(tmp_path) in text
    done = subprocess.run(["/bin/bash", "-euc", text], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search(r"ignoring|Unknown", done.stderr), done.stderr
    links = (tmp_path / "etc/systemd/system/multi-user.target.wants").iterdir()
    assert {link.name for link in links} == {
        f"pulse-{name}.service" for name in COMPOSED.keys() - {"prepare"}
    }
    settings = list((tmp_path / "etc/pulse").iterdir())
    assert {path.name for path in settings} == {path.name for path in EXAMPLES.iterdir()}
    assert {path.stat().st_mode & 0o777 for path in settings} == {0o600}
    assert (tmp_path / "opt/dagster").stat().st_uid != 0
