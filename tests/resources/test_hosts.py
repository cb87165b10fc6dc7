"""The hosts that tests make of namespaces: separate, and gone with whoever made them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.hosts.network import Network, missing
from chaos.waiting import wait
from pulse_resources.local import ports

pytestmark = pytest.mark.long

MADE = """
import sys
from pathlib import Path
from chaos.hosts.network import Network, missing
network = Network(Path(sys.argv[1]), {"left": []}).__enter__()
host = network.add("left", {})
host.start(["sleep", "1000"], Path(sys.argv[1]) / "log")
print(network.first.pid, host.pid, flush=True)
sys.stdin.read()
"""
WRITER = """
import os, socket
open("/tmp/file", "w").write("left")
server = socket.socket(socket.AF_UNIX)
server.bind("/tmp/socket")
server.listen()
network = socket.create_server(("127.0.0.1", 7000))
print("ready", flush=True)
server.accept()
"""
ANSWER = "import socket; socket.create_server(('0.0.0.0', 8000)).accept()[0].sendall(b'left')"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    if reason := missing():
        pytest.skip(f"hosts cannot be made here: {reason}")
    with Network(tmp_path_factory.mktemp("hosts"), {"left": ["store"], "right": []}) as network:
        for name in network.names:
            network.add(name, {})
        yield network


def test_hosts_share_no_file_no_socket_no_process_and_no_variable(network: Network, tmp_path: Path) -> None:
    left, right = network.hosts["left"], network.hosts["right"]
    left.start(["/usr/bin/python3", "-c", WRITER], tmp_path / "log")
    wait(lambda: (tmp_path / "log").read_text() == "ready\n", "the host does not write")
    script = """
        ls /tmp; ls -d /root /srv/* /home/*; (echo > /dev/tcp/127.0.0.1/7000) 2>&1 | grep -m1 -o 'refused$'
        ls /proc | grep -c '^[0-9]'; id -u; hostname; env | cut -d= -f1 | sort | tr '\\n' ' '
    """
    done = right.run(["bash", "-c", script], {"GIVEN": "1"})
    *lines, variables = done.stdout.splitlines()
    assert lines[:2] == ["/srv/pulse", "refused"], done.stdout
    assert int(lines[2]) < 10, "it sees the machine's processes"
    assert lines[3:] == [str(right.uid), "right"]
    assert right.uid != left.uid
    assert set(variables.split()) - {"_", "OLDPWD", "PWD", "SHLVL"} == {"GIVEN", "HOME", "LANG", "PATH"}
    assert right.run(["touch", "/usr/file"]).returncode, "it may write to the machine"


def test_hosts_reach_each_other_by_name_and_are_reached_from_outside(
    network: Network, tmp_path: Path
) -> None:
    left, right = network.hosts["left"], network.hosts["right"]
    for _ in range(2):
        answering = left.start(["/usr/bin/python3", "-c", ANSWER], tmp_path / "log")
        reached = "for i in $(seq 3000); do cat < /dev/tcp/store/8000 && break; sleep 0.1; done"
        assert right.run(["bash", "-c", reached]).stdout == "left"
        answering.wait()
        answering = left.start(["/usr/bin/python3", "-c", ANSWER], tmp_path / "log")
        with network.reached():
            wait(lambda: ports.answers(left.address, 8000), "it is not reached from outside")
        answering.wait()
        left.switch_off()  # and on again, with its files and its address
        left.switch_on()


def test_packets_of_one_direction_are_lost_until_the_fault_ends(network: Network) -> None:
    left, right = network.hosts["left"], network.hosts["right"]
    knock = ["bash", "-c", "exec 3<> /dev/tcp/store/1"]
    with network.lost("right", "left"):
        assert right.run(["timeout", "0.5", *knock]).returncode == 124, "somebody answers"
    assert "refused" in right.run(knock).stderr
    with network.lost("left", "right"):
        assert right.run(["timeout", "0.5", *knock]).returncode == 124, "the answer arrives"
    assert "refused" in right.run(knock).stderr
    assert left.address in right.run(["getent", "hosts", "store"]).stdout


def test_nothing_stays_when_the_process_that_made_them_is_killed(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(f"hosts cannot be made here: {reason}")
    with subprocess.Popen(
        [sys.executable, "-c", MADE, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as maker:
        assert maker.stdout
        pids = [int(pid) for pid in maker.stdout.readline().split()]
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        maker.send_signal(signal.SIGKILL)
    wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "first processes stay")
    links = json.loads(subprocess.run(["/usr/sbin/ip", "-j", "link"], capture_output=True, check=True).stdout)
    assert not [link for link in links if link["ifname"].startswith(("to-", "bridge"))]
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
