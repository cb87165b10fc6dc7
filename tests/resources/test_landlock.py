"""Landlock: what a process has given up it cannot have, and what it kept it can."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.waiting import PATIENCE_S
from pulse_resources.process import landlock

pytestmark = pytest.mark.skipif(
    landlock.version() < landlock.CONNECTIONS_SINCE,
    reason="the kernel has no Landlock that knows connections",
)
TRY = """
import os, socket, subprocess, sys
from pathlib import Path
from pulse_resources.process import landlock
readable, other, port, other_port = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
"".encode("idna")
if sys.argv[5] == "confined":
    landlock.restrict([readable, Path("/no/such/file")], [port])
def tried(what):
    try:
        what()
        return "1"
    except OSError:
        return "0"
os.write(1, "".join(map(tried, [
    lambda: open(readable),
    lambda: socket.create_connection(("127.0.0.1", port)),
    lambda: open(other),
    lambda: open(readable, "a"),
    lambda: open(other + ".new", "w"),
    lambda: os.listdir("/"),
    lambda: os.unlink(other + ".old"),
    lambda: socket.create_connection(("127.0.0.1", other_port)),
    lambda: socket.create_server(("127.0.0.1", 0)),
    lambda: os.posix_spawn("/bin/true", ["true"], {}),
    lambda: os.kill(os.getppid(), 0),
])).encode())
"""


@pytest.mark.parametrize(("how", "can"), [("confined", "11000000000"), ("free", "11111111111")])
def test_a_confined_process_reaches_only_permitted_resources(how: str, can: str, tmp_path: Path) -> None:
    for name in ("readable", "other", "other.old"):
        (tmp_path / name).write_text("x")
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        done = subprocess.run(
            [
                *(sys.executable, "-c", TRY, str(tmp_path / "readable"), str(tmp_path / "other")),
                *(str(one.getsockname()[1]), str(two.getsockname()[1]), how),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        )
    expected = can if landlock.version() >= 6 else can[:-1] + "1"  # signals are known since then
    assert done.stdout == expected, done.stderr
