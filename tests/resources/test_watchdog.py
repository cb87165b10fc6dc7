"""The watchdog kills a process whose work stands still, and none whose work goes on."""

import signal
import subprocess
import sys

import pytest

WATCHED = """
import threading, time
from pulse_resources.process.watchdog import watched
with watched("a test", {seconds}) as alive:
    {work}
print("over")
time.sleep({rest})
"""
STILL = ("time.sleep(3600)", 0.5, 0, -signal.SIGKILL)
GOES_ON = ("for _ in range(8): time.sleep(0.5); alive()", 3, 0, 0)
IS_OVER = ("pass", 0.5, 1, 0)


@pytest.mark.parametrize(
    ("work", "seconds", "rest", "ended"),
    [STILL, pytest.param(*GOES_ON, marks=pytest.mark.slow), IS_OVER],
    ids=["still", "on", "over"],
)
def test_a_process_is_killed_when_its_work_stands_still(
    work: str, seconds: float, rest: float, ended: int
) -> None:
    program = WATCHED.format(work=work, seconds=seconds, rest=rest)
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == ended, done.stderr
    assert ("over" in done.stdout) == (ended == 0)
    assert ("a test hangs" in done.stderr) == (ended != 0)
