"""deploy/systemd, started by a systemd: the sandbox permits what Pulse does, and nothing else that is tried.

There is no Postgres, Kafka or object store, so no service does its work here (see test_units_at_work.py).
"""

import json
from collections.abc import Iterator

import pytest
from support.systemd import Systemd, missing, started

from chaos.waiting import wait
from pulse_resources.local import spark

pytestmark = pytest.mark.slow
PROBE = """
import json, os, socket
from pathlib import Path
from pulse_resources.process import landlock, niceness

def tried(do):
    try:
        return do() or "done"
    except OSError as error:
        return type(error).__name__

def forked(do):
    reading, writing = os.pipe()
    if not os.fork():
        os.write(writing, str(tried(do)).encode())
        os._exit(0)
    os.wait()
    return os.read(reading, 1000).decode()

def confined():
    landlock.restrict([Path("/etc/hosts")], [9])
    return [tried(Path(path).open) != "PermissionError" for path in ("/etc/hosts", "/etc/passwd")]

status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps({
    "capabilities": {status[name].strip() for name in ("CapEff", "CapPrm", "CapBnd", "CapInh")} == {"0" * 16},
    "landlock": forked(confined),
    "niceness": forked(lambda: (niceness.begin_session(), os.nice(0))[1]),
    "memory first": forked(lambda: Path("/proc/self/oom_score_adj").write_text("1000")),
    "own folder": tried(lambda: Path(os.environ["PULSE_HOME"], "file").write_text("1")),
    "/etc": tried(lambda: Path("/etc/file").write_text("1")),
    "secrets": tried(lambda: Path("/etc/pulse/pulse.env").read_text()),
    "netlink": tried(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()),
    "name": tried(lambda: socket.getaddrinfo("localhost", 80)[0][4][0]),
    "processes of others": os.path.exists("/proc/1"),
}))
"""
CLIENT = """
import os
import pandas
from pulse_resources import spark

def work(frames):
    for frame in frames:
        yield pandas.DataFrame({"uid": [os.getuid()]})

with spark.session() as session:
    print({row.uid for row in session.range(10).mapInPandas(work, "uid int").collect()})
"""


@pytest.fixture(scope="module")
def systemd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Systemd]:
    """With the page's commands done, and addresses at which no service listens."""
    if reason := missing():
        pytest.skip(f"no systemd can be started here: {reason}")
    with started(tmp_path_factory.mktemp("systemd")) as running:
        running.install()
        failed = running.run("systemctl start pulse-lake", check=False)
        assert "failed" in failed
        assert "PULSE_LAKE__TOKEN_SECRET has a placeholder: see /etc/pulse" in running.journal("pulse-lake")
        running.run("systemctl stop pulse-lake")
        running.run(
            "sed -i '/SECRET/s/REPLACE-ME/of-16-characters-or-more/; s/REPLACE-ME/127.0.0.1/g' /etc/pulse/*"
        )
        yield running


def run_python(systemd: Systemd, unit: str, code: str) -> str:
    """Run code as a unit whose name begins like those of services, and which has their sandbox by that."""
    systemd.run(f"cat > /run/{unit}.py <<'END'\n{code}\nEND\nchmod 644 /run/{unit}.py")
    file = "EnvironmentFile=/etc/pulse/pulse.env"
    systemd.run(f"systemd-run --unit={unit} -p {file} /opt/pulse/bin/python /run/{unit}.py")
    wait(lambda: systemd.state(unit, "ActiveState") in ("inactive", "failed"), f"{unit} does not end")
    return systemd.journal(unit)


def test_the_sandbox_permits_what_pulse_does_and_nothing_else(systemd: Systemd) -> None:
    written = run_python(systemd, "pulse-dagster-probe", PROBE)
    assert json.loads(written.strip().splitlines()[-1]) == {
        "capabilities": True,
        "landlock": "[True, False]",
        "niceness": "4",
        "memory first": "4",
        "own folder": 1,
        "/etc": "OSError",
        "secrets": "PermissionError",
        "netlink": "OSError",
        "name": "127.0.0.1",
        "processes of others": False,
    }


def test_the_catalog_answers_has_no_key_of_the_store_and_starts_again(systemd: Systemd) -> None:
    systemd.run("systemctl start pulse-lake")
    answers = "curl -sf http://127.0.0.1:8182/healthz"
    wait(lambda: "ok" in systemd.run(answers, check=False), "the catalog does not answer")
    process = systemd.state("pulse-lake", "MainPID")
    variables = systemd.run(f"tr '\\0' '\\n' < /proc/{process}/environ")
    assert "PULSE_OBJECT_STORE__VENDING_SECRET_KEY=" in variables
    assert "PULSE_OBJECT_STORE__SECRET_KEY=" not in variables
    systemd.run(f"kill -KILL {process}")
    wait(lambda: systemd.state("pulse-lake", "NRestarts") == "1", "it is not started again")
    wait(lambda: "ok" in systemd.run(answers, check=False), "the catalog does not answer again")
    systemd.run("systemctl stop pulse-lake")
    assert systemd.state("pulse-lake", "Result") == "success"


def test_the_api_has_processes_for_sql_under_landlock(systemd: Systemd) -> None:
    systemd.run("systemctl start pulse-api")
    processes = "systemctl status --no-pager --full pulse-api | grep pulse_pipelines.sql.template"
    wait(lambda: "landlock" in systemd.run(processes, check=False), "no process for SQL")
    assert r"\"landlock\":true" in systemd.run(processes)
    systemd.run("systemctl stop pulse-api")
    assert systemd.state("pulse-api", "Result") == "success"
    assert systemd.state("pulse-api", "TasksCurrent") in ("0", "[not set]")


def test_spark_serves_and_its_tasks_run_as_its_user(systemd: Systemd) -> None:
    if not spark.DOWNLOAD.path.exists():
        pytest.skip("Spark's jars are not there: `pulse up` fetches them")
    systemd.run("systemctl start pulse-spark")
    wait(lambda: "yes" in systemd.run("exec 3<>/dev/tcp/127.0.0.1/15002; echo yes", check=False), "no Spark")
    user = systemd.run("id -u pulse-spark").strip()
    assert f"{{{user}}}" in run_python(systemd, "pulse-dagster-client", CLIENT)
    systemd.run("systemctl stop pulse-spark")
    assert systemd.state("pulse-spark", "Result") == "success"


def test_preparation_fails_for_whoever_starts_it(systemd: Systemd) -> None:
    assert "failed" in systemd.run("systemctl start pulse-prepare", check=False)
    assert systemd.state("pulse-prepare", "ActiveState") == "failed"
