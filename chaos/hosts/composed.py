"""The services of docker/compose.yaml on hosts: their command lines, environments, order and health checks.

What containers would have of their images is here, too: Pulse as the wheel installs it, and what the entry
points of the images of Postgres, Kafka and MinIO do with the settings of the file.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from chaos.hosts.host import Files, Host
from chaos.hosts.network import Network
from chaos.waiting import PATIENCE_S
from pulse_resources.local import kafka, minio_program, postgres, spark

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
IMAGE = "/opt/pulse"
_SOURCES = ("pulse_resources", "pulse_pipelines", "pulse_api", "dagster_home")
_DATA = {"postgres": "/var/lib/postgresql", "kafka": "/var/lib/kafka", "minio": "/data"}
_POSTGRES = "/var/lib/postgresql/18/docker"
_VARIABLE = re.compile(r"\$\{(\w+)(?::([?-])([^}]*))?\}")
Services = Mapping[str, Mapping[str, Any]]


def read_services(variables: Mapping[str, str]) -> Services:
    """The services as the file describes them, with its variables replaced.

    Raises:
        KeyError: a variable without a default has no value.
    """

    def value(match: "re.Match[str]") -> str:
        name, kind, default = match.groups()
        return variables.get(name, default) if kind == "-" else variables[name]

    def replaced(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: replaced(below) for key, below in node.items()}
        if isinstance(node, list):
            return [replaced(below) for below in node]
        return _VARIABLE.sub(value, node) if isinstance(node, str) else node

    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    return {name: replaced(service) for name, service in services.items() if "profiles" not in service}


def build_image(folder: Path) -> list[Path]:
    """Install the wheel; returns the layers of /opt/pulse: the wheel's above the environment of the tests.

    Of the environment they hide what leads to the checkout.
    """
    source, wheels, layer = folder / "source", folder / "wheels", folder / "layer"
    for name in _SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "clients" / "python" / "pulse_client", source / "pulse_client")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    build = [
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        str(wheels),
    ]
    subprocess.run([sys.executable, *build, str(source)], check=True, cwd=folder)
    (wheel,) = wheels.glob("*.whl")
    environment = Path(sys.prefix)
    packages = next(environment.glob("lib/python*/site-packages"))
    target = layer / packages.relative_to(environment)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(target)], check=True)
    for path in packages.glob("__editable__*pulse*"):
        os.mknod(target / path.name, 0o600 | 0o020000)  # what a layer above hides
    (layer / "bin").mkdir()
    for path in (environment / "bin").iterdir():
        text = b"" if path.is_symlink() else path.read_bytes()[:10_000]
        if text.startswith(b"#!" + os.fsencode(environment)):
            script = layer / "bin" / path.name
            script.write_bytes(path.read_bytes().replace(os.fsencode(environment), os.fsencode(IMAGE)))
            script.chmod(0o755)
    return [layer, environment]


def pulse_files(layers: Sequence[Path]) -> Files:
    """What a host has of the machine to run Pulse's own code."""
    return {IMAGE: layers, sys.base_prefix: [Path(sys.base_prefix)]}


def image_files(services: Sequence[str], layers: Sequence[Path]) -> Files:
    """What a host has of the machine, for the services that it runs."""
    files: dict[str, Sequence[Path]] = {}
    if "postgres" in services:
        package = postgres._wheel().parent
        files[f"/opt/{package.name}"] = [package]
        files[f"/opt/{package.name}.libs"] = [package.with_name(f"{package.name}.libs")]
    if "kafka" in services:
        files["/opt/kafka"] = [kafka.DOWNLOAD.path]
    if "minio" in services:
        files["/opt/minio"] = [Path(minio_program.on_path() or minio_program.DOWNLOAD.path / "minio").parent]
    if set(services) - _DATA.keys():
        files |= pulse_files(layers)
    if "spark" in services:
        files[f"/opt/cache/pulse/{spark.DOWNLOAD.name}"] = [spark.DOWNLOAD.path]
    return files


@dataclass
class Deployment:
    """Services on hosts.

    `placement` has the host of each service, `more` further settings of Pulse's own services.
    """

    network: Network
    services: Services
    placement: Mapping[str, str]
    layers: Sequence[Path]
    more: Mapping[str, str] = field(default_factory=dict)
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self) -> None:
        """Start hosts and services, each when those that it needs are healthy."""
        for host in dict.fromkeys(self.placement.values()):
            self.network.add(host, image_files(self.on(host), self.layers))
            self._make_folders(host)
        for name in self._order():
            self.launch(name)
            if "healthcheck" in self.services[name]:
                self.wait_until_healthy(name)
            elif self.processes[name].wait(PATIENCE_S):
                raise RuntimeError(f"{name} failed: {self.log(name).read_text()[-2000:]}")

    def on(self, host: str) -> list[str]:
        """Services of a host."""
        return [name for name, place in self.placement.items() if place == host]

    def switch_on(self, host: str) -> None:
        """Switch a host on again; its services start at once, in no order, as after a loss of power."""
        self.network.hosts[host].switch_on()
        self.mend()

    def mend(self) -> None:
        """Start what has ended and is to be `restart: unless-stopped`, on hosts that are on."""
        for name, service in self.services.items():
            ended = name in self.processes and self.processes[name].poll() is not None
            if ended and service["restart"] == "unless-stopped" and self.host(name).first:
                self.launch(name)

    def host(self, service: str) -> Host:
        return self.network.hosts[self.placement[service]]

    def user(self, service: str) -> str:
        return service if service in _DATA else "pulse"

    def log(self, service: str) -> Path:
        """What the service has written, as the machine names it."""
        return self.network.folder / f"{service}.log"

    def launch(self, name: str) -> None:
        """Start the process of a service, without waiting for it."""
        adapted = _ENTRY_POINTS.get(name)
        command = adapted(self, self.services[name]) if adapted else self.services[name]["command"]
        folder = "/" if name in _DATA else "/srv/app"
        environment = self.environment(name)
        self.processes[name] = self.host(name).start(
            command, self.log(name), environment, folder, self.user(name)
        )

    def execute(self, name: str, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        """Run a command beside a service, with its environment, as `docker compose exec` does."""
        folder = "/" if name in _DATA else "/srv/app"
        return self.host(name).run(command, self.environment(name), folder, self.user(name))

    def wait_until_healthy(self, name: str) -> None:
        """Wait for the service's own health check; what ends is started again.

        Raises:
            RuntimeError: it is not healthy in time.
        """
        check = self.services[name]["healthcheck"]["test"][1:]
        deadline = time.monotonic() + PATIENCE_S
        while (done := self.execute(name, check)).returncode:
            if time.monotonic() > deadline:
                output = done.stdout + done.stderr + self.log(name).read_text()[-3000:]
                raise RuntimeError(f"{name} is not healthy: {output}")
            time.sleep(1)
            self.mend()

    def environment(self, name: str) -> dict[str, str]:
        """Variables of a service: those of its image, then those of the file."""
        variables = {key: str(value) for key, value in self.services[name].get("environment", {}).items()}
        if name in _DATA:
            return variables
        image = re.search(r"^ENV (.*)$", DOCKERFILE.partition(" AS pulse\n")[2], re.MULTILINE)
        assert image
        return dict(part.split("=", 1) for part in image[1].split()) | variables | dict(self.more)

    def _make_folders(self, name: str) -> None:
        host = self.network.hosts[name]
        services = self.on(name)
        folders = {folder: service for service, folder in _DATA.items() if service in services}
        if len(folders) < len(services):
            folders |= dict.fromkeys(("/var/lib/pulse", "/opt/dagster", "/srv/app"), "pulse")
        install = "; ".join(f"install -d -o {user} -g {user} {folder}" for folder, user in folders.items())
        # As the Dockerfile does it: Dagster writes beside its dagster.yaml, and may not write into the code.
        packaged = f"{IMAGE}/lib/python*/site-packages/dagster_home"
        links = f"for p in {packaged}; do ln -sf $p /srv/app/; ln -sf $p/dagster.yaml /opt/dagster/; done"
        script = f"{install}; {links}" if "/srv/app" in folders else install
        if _DATA["postgres"] in folders:
            binaries = postgres._wheel()
            script += f"; ln -sf /opt/{binaries.parent.name}/{binaries.name} /opt/postgres"
        done = host.run(["/bin/sh", "-ec", script], user="root")
        assert not done.returncode, done.stderr

    def _order(self) -> Iterator[str]:
        waiting = {name: set(service.get("depends_on", {})) for name, service in self.services.items()}
        while waiting:
            ready = [name for name, needed in waiting.items() if not needed & waiting.keys()]
            yield from ready
            for name in ready:
                del waiting[name]


def _postgres(deployment: Deployment, service: Mapping[str, Any]) -> list[str]:
    """What the entry point of the image `postgres` does."""
    arguments = service["environment"]["POSTGRES_INITDB_ARGS"]
    script = f"""
        if [ ! -e {_POSTGRES}/PG_VERSION ]; then
            printf %s "$POSTGRES_PASSWORD" > /tmp/password
            initdb -D {_POSTGRES} -U postgres --pwfile=/tmp/password --auth-local=trust {arguments}
            rm /tmp/password
            echo 'host all all all scram-sha-256' >> {_POSTGRES}/pg_hba.conf
        fi
        exec "$@" -D {_POSTGRES} -c listen_addresses='*' -c unix_socket_directories=/tmp"""
    return ["/bin/sh", "-ec", script, "sh", *service["command"]]


def _kafka(deployment: Deployment, service: Mapping[str, Any]) -> list[str]:
    """What the entry point of the image `apache/kafka` does."""
    variables = {name: value for name, value in service["environment"].items() if name != "KAFKA_HEAP_OPTS"}
    names = {name: name.removeprefix("KAFKA_").lower().replace("_", ".") for name in variables}
    properties = "".join(f"{names[name]}={value.strip()}\n" for name, value in variables.items())
    host = deployment.host("kafka")
    (host.root / "var/lib/kafka/server.properties").write_text(properties)
    java = "java $KAFKA_HEAP_OPTS -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp '/opt/kafka/*'"
    formatted = (
        "--cluster-id=bXktY2x1c3Rlci1pZC0xMg --config /var/lib/kafka/server.properties --ignore-formatted"
    )
    script = f"""
        {java} kafka.tools.StorageTool format {formatted}
        exec {java} kafka.Kafka /var/lib/kafka/server.properties"""
    return ["/bin/sh", "-ec", script]


def _minio(deployment: Deployment, service: Mapping[str, Any]) -> list[str]:
    """The command of the image, from the Dockerfile."""
    command = re.search(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert command
    parts: list[str] = json.loads(command[1])
    return parts


_ENTRY_POINTS: Mapping[str, Callable[[Deployment, Mapping[str, Any]], list[str]]] = {
    "postgres": _postgres,
    "kafka": _kafka,
    "minio": _minio,
}
