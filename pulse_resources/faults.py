"""Fail points: named places where a test may kill or stop the process, as a power cut would.

`PULSE_FAIL_POINT=settle.before_commit` makes the process that reaches this point die by SIGKILL;
`PULSE_FAIL_POINT=stop:after.land` makes it stop there by SIGSTOP, as a long pause would.
"""

import os
import signal


def fail_point(name: str) -> None:
    """Die or stop here when a test asks for it; otherwise nothing."""
    wanted = os.environ.get("PULSE_FAIL_POINT")
    if wanted == name:
        os.kill(os.getpid(), signal.SIGKILL)
    elif wanted == f"stop:{name}":
        os.kill(os.getpid(), signal.SIGSTOP)
