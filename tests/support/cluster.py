"""A Spark cluster from the pyspark wheel: a master, workers that share only the network, a Connect server.

Each worker has a user (where the tests are root's), a home and a working directory of its own, a Python that
has never seen Pulse, and no variable of Pulse's in its environment.
"""

import html
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from chaos.waiting import PATIENCE_S, wait
from pulse_resources.local import ports
from pulse_resources.local.accounts import existing_account
from pulse_resources.local.downloads import spark_home
from pulse_resources.local.prerequisites import java
from pulse_resources.local.spark import DOWNLOAD

MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
USERS = ("daemon", "bin", "games", "mail", "news")
"""That every machine has: Hadoop's library wants users with a name."""
TOKEN = "the-token-of-the-cluster"
DEPTH = 2
LINK = re.compile(r'href="([^"#]+)"')
DEED = "kill"
"""In links that a visitor should not follow."""
SITE_PACKAGES = Path(sysconfig.get_paths()["purelib"])


@dataclass
class Cluster:
    """Processes of a cluster, and what they write."""

    folder: Path
    ports: Mapping[str, int]
    python: Path
    accounts: bool
    workers: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    others: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    started: int = 0

    @property
    def place(self) -> str:
        return f"sc://127.0.0.1:{self.ports['connect']}"

    @property
    def home(self) -> Path:
        return self.folder / "server"

    def add_worker(self) -> None:
        """One core, in a folder of its own."""
        number = self.started = self.started + 1
        name = f"worker{number}"
        uid = pwd.getpwnam(USERS[number % len(USERS)]).pw_uid if self.accounts else None
        options = [
            "--cores",
            "1",
            "--memory",
            "1g",
            "--host",
            "127.0.0.1",
            "--work-dir",
            str(self.folder / name),
        ]
        master = f"spark://127.0.0.1:{self.ports['master']}"
        self.workers[number] = self.launch(name, ["spark-class", WORKER, *options, master], uid)

    def launch(
        self, name: str, command: list[str], uid: int | None = None, **env: str
    ) -> "subprocess.Popen[bytes]":
        own = self.folder / name
        own.mkdir(mode=0o700)
        if uid is not None:
            os.chown(own, uid, uid)
        # By a program: Popen would fork for it, and gRPC's threads do not bear that.
        become = [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(own),
            "JAVA_HOME": str(Path(java()).resolve().parent.parent),
            "SPARK_HOME": str(spark_home()),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_DIRS": str(own),
            "PYTHONPATH": str(SITE_PACKAGES),
            "LD_LIBRARY_PATH": str(self.python.parents[1] / "lib"),
            "LANG": "C.UTF-8",
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*become, str(spark_home() / "bin" / command[0]), *command[1:]],
                env=environment | env,
                cwd=own,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if uid is None:
            self.others.append(process)
        return process

    def rest(self, path: str) -> Any:
        """What Spark's own REST API says of the application."""
        base = f"http://127.0.0.1:{self.ports['ui']}/api/v1/applications"
        with httpx.Client(timeout=PATIENCE_S) as http:
            (application,) = http.get(base).raise_for_status().json()
            return http.get(f"{base}/{application['id']}/{path}").raise_for_status().json()

    def executors(self) -> dict[str, int]:
        """Ids of executors that live, each with the number of its worker."""
        numbers = {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().decode().split("\0")
                if "--executor-id" in words and "--app-id" in words:
                    session = os.getsid(int(process.name))
                    for number, worker in self.workers.items():
                        if worker.pid == session:
                            numbers[words[words.index("--executor-id") + 1]] = number
        return numbers

    def kill_worker(self, number: int) -> None:
        """All processes of a worker's machine, as a power cut would."""
        worker = self.workers.pop(number)
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.getsid(int(process.name)) == worker.pid:
                    os.kill(int(process.name), signal.SIGKILL)
        worker.wait()

    def busy(self) -> str | None:
        """An executor that runs a task now."""
        for stage in self.rest("stages?status=active&details=true"):
            for task in stage.get("tasks", {}).values():
                if task["status"] == "RUNNING":
                    return str(task["executorId"])
        return None

    @contextmanager
    def another_server(self) -> Iterator[str]:
        """A Connect server of one process beside the cluster, as Spark comes; its address."""
        port = ports.choose(17_090, self.ports.values())
        options = ["--conf", f"spark.connect.grpc.binding.port={port}", "--conf", "spark.ui.enabled=false"]
        command = ["spark-submit", "--master", "local[1]", *options, "--class", CONNECT, "spark-internal"]
        server = self.launch(f"server{port}", command, SPARK_CONNECT_AUTHENTICATE_TOKEN=TOKEN)
        try:
            wait(lambda: ports.answers("127.0.0.1", port), "the Connect server does not start")
            yield f"sc://127.0.0.1:{port}"
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()

    def stop(self) -> None:
        for number in list(self.workers):
            self.kill_worker(number)
        for process in self.others:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def written(self) -> Iterator[tuple[str, bytes]]:
        """What processes of the cluster wrote for people: logs, event logs and configuration."""
        for path in self.folder.rglob("*"):
            readable = path.suffix in (".log", ".properties") or path.name in ("stdout", "stderr")
            if path.is_file() and (readable or "events" in path.parts):
                yield str(path), path.read_bytes()

    def pages(self) -> Iterator[tuple[str, bytes]]:
        """Pages of Spark's web interfaces, two links deep, and what its REST API says of the application."""
        roots = [f"http://127.0.0.1:{self.ports[name]}" for name in ("ui", "master_ui")]
        pending, visited = [(f"{root}/", 0) for root in roots], set[str]()
        with httpx.Client(timeout=PATIENCE_S, follow_redirects=True) as http:
            while pending:
                url, depth = pending.pop()
                if url in visited or not url.startswith(tuple(roots)):
                    continue
                visited.add(url)
                answer = http.get(url)
                yield url, answer.content
                if depth < DEPTH:
                    links = (html.unescape(link) for link in LINK.findall(answer.text))
                    pending += [
                        (str(httpx.URL(url).join(link)), depth + 1) for link in links if DEED not in link
                    ]
        for path in ("environment", "stages?details=true", "sql?details=true", "allexecutors", "jobs"):
            yield path, json.dumps(self.rest(path)).encode()


@contextmanager
def a_worker_dies_at_work(running: Cluster) -> Iterator[None]:
    """The first worker that has a task while the block runs dies of SIGKILL, all of it; another one comes."""
    killed: list[str] = []

    def kill() -> None:
        wait(lambda: running.busy() is not None, "no executor was given a task")
        executor = running.busy()
        if executor is not None:
            running.kill_worker(running.executors()[executor])
            killed.append(executor)

    with ThreadPoolExecutor(1) as aside:
        under_way = aside.submit(kill)
        yield
        under_way.result()
    running.add_worker()
    (executor,) = killed

    def removed() -> bool:
        known = {entry["id"]: entry for entry in running.rest("allexecutors")}
        return not known[executor]["isActive"] and len(known) > len(running.workers)

    wait(removed, "Spark has not noticed")
    wait(lambda: len(running.executors()) == len(running.workers), "no executor in its place")


@contextmanager
def cluster(defaults: Mapping[str, str], workers: int = 2) -> Iterator[Cluster]:
    """A cluster whose Connect server has this configuration beside addresses and sizes."""
    folder = Path(tempfile.mkdtemp(prefix="pulse-cluster-", dir="/var/tmp"))
    folder.chmod(0o755)
    names = ("master", "master_ui", "connect", "ui")
    chosen: dict[str, int] = {}
    for name in names:
        chosen[name] = ports.choose(17_077, chosen.values())
    python, accounts = _python(folder)
    cluster = Cluster(folder, chosen, python, accounts)
    try:
        options = [
            "--host",
            "127.0.0.1",
            "--port",
            str(chosen["master"]),
            "--webui-port",
            str(chosen["master_ui"]),
        ]
        cluster.launch("master", ["spark-class", MASTER, *options])
        wait(lambda: ports.answers("127.0.0.1", chosen["master"]), "the master does not start")
        for _ in range(workers):
            cluster.add_worker()
        jars = ",".join(str(path) for path in sorted(DOWNLOAD.path.glob("*.jar")))
        events = folder / "events"
        events.mkdir()
        configuration = {
            **defaults,
            "spark.master": f"spark://127.0.0.1:{chosen['master']}",
            "spark.jars": jars,
            "spark.connect.grpc.binding.port": str(chosen["connect"]),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.executor.cores": "1",
            "spark.executor.memory": "768m",
            "spark.shuffle.readHostLocalDisk": "false",  # each worker is an account of its own
            "spark.ui.liveUpdate.period": "0",  # what runs now is to be seen now
            "spark.ui.port": str(chosen["ui"]),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file:{events}",
        }
        properties = folder / "spark.properties"
        properties.write_text("".join(f"{name} {value}\n" for name, value in configuration.items()))
        submit = ["spark-submit", "--properties-file", str(properties), "--class", CONNECT, "spark-internal"]
        secret = {"SPARK_CONNECT_AUTHENTICATE_TOKEN": TOKEN, "PYSPARK_PYTHON": str(python)}
        cluster.launch("server", submit, **secret)
        wait(lambda: ports.answers("127.0.0.1", chosen["connect"]), "the Connect server does not start", 60)
        yield cluster
    finally:
        cluster.stop()
        if not os.environ.get("PULSE_KEEP_CLUSTER"):
            shutil.rmtree(folder, ignore_errors=True)


def _python(folder: Path) -> tuple[Path, bool]:
    """A Python without Pulse that the workers reach, and whether they can have users of their own."""
    base = Path(sys.base_prefix)
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    stranger = existing_account(USERS)
    if (
        stranger is None
        or not shutil.which("setpriv")
        or not (stranger.reaches(SITE_PACKAGES) and stranger.reaches(spark_home() / "bin"))
    ):
        return base / "bin" / name, False
    if stranger.reaches(base / "bin" / name):
        return base / "bin" / name, True
    copy = folder / "python"
    (copy / "bin").mkdir(parents=True)
    shutil.copy(base / "bin" / name, copy / "bin" / name)
    unwanted = shutil.ignore_patterns("test", "tests", "site-packages", "idlelib", "config-*", "ensurepip")
    shutil.copytree(base / "lib" / name, copy / "lib" / name, ignore=unwanted)
    for library in (base / "lib").glob("libpython*"):
        shutil.copy(library, copy / "lib" / library.name)
    return copy / "bin" / name, True
