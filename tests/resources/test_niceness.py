"""Niceness, as ordinary users may set it."""

import subprocess
import sys

BEGUN = """
import os, sys
from pulse_resources.process.niceness import begin_session
before = os.nice(10)
if os.geteuid() == 0:
    os.setuid(65534)
begin_session()
print(os.getpriority(os.PRIO_PROCESS, 0) == before, os.getsid(0) == os.getpid())
"""


def test_a_process_that_yields_more_than_the_background_begins_its_session_all_the_same() -> None:
    """The units and containers of an operator may give a service any niceness; only root may lower it."""
    done = subprocess.run([sys.executable, "-c", BEGUN], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["True", "True"], "")
