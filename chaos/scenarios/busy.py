"""A busy machine: the whole stack beside many processes that compute, while its services are killed."""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from chaos.oracle import Finding
from chaos.scenario import Outcome, ReportProgress
from chaos.stack import Stack
from chaos.traffic import Traffic, settled_until
from pulse_resources import postgres
from pulse_resources.local import state
from pulse_resources.local.layout import Layout

PROCESSES = 60
"""That compute beside the stack, at its priority, unless this variable of the environment says otherwise."""
HOW_MANY = "CHAOS_BUSY_PROCESSES"
BEFORE_S = 8.0
KILLS = 10
"""Kills within the whole time."""
KILLED = ("spark", "dagster-code", "dagster-daemon", "api", "kafka", "postgres")
CURRENT_S = 120.0
"""Seconds after the load in which all that was sent has to be settled."""
STARTS = 3
"""Starts, or attempts at a batch, for which no kill is the reason."""
ATTEMPTS = "SELECT batch_id::text, attempt FROM ingest_batches WHERE attempt > %s"
_COMPUTE = "while :; do :; done"


def run(stack: Stack, seed: int, amount: float, report_progress: ReportProgress) -> Outcome:
    """Keep the machine busy for as many minutes, and see that the stack does not keep itself from working."""
    processes = int(os.environ.get(HOW_MANY, PROCESSES))
    draw, traffic = random.Random(seed), Traffic.of_new_tenants(seed, api=True)
    killed: Counter[str] = Counter()
    before = _restarts(stack)
    with traffic.flowing():
        time.sleep(BEFORE_S)
        with _busy(processes, amount * 60):
            began = time.monotonic()
            while (passed := time.monotonic() - began) < amount * 60:
                report_progress(passed / 60)
                time.sleep(min(amount * 60 / KILLS, amount * 60 - passed))
                name = draw.choice(KILLED)
                stack.end(name, signal.SIGKILL)
                killed[name] += 1
        recovered = settled_until(traffic.sent)
    settled_until(traffic.sent)
    findings = [*_started_too_often(stack, before, killed), *_attempted_too_often(killed.total())]
    if recovered > CURRENT_S:
        findings.append(Finding("behind after the load", "all", f"for {recovered:.0f} s"))
    harm = f"{amount:g} min beside {processes} processes, {killed.total()} kills"
    return Outcome(traffic.sent, harm, findings, recovered, killed)


@contextmanager
def _busy(processes: int, seconds: float) -> Iterator[None]:
    """Processes that compute while the block runs; they end by themselves if this one is killed."""
    command = ["timeout", f"{seconds + 600:.0f}", "sh", "-c", _COMPUTE]
    started = [subprocess.Popen(command, start_new_session=True) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _restarts(stack: Stack) -> Mapping[str, int]:
    states = [state.read(Layout(stack.home / part)) for part in ("main", "storage")]
    return {
        name: service.restarts
        for stack_state in states
        if stack_state
        for name, service in stack_state.services.items()
    }


def _started_too_often(stack: Stack, before: Mapping[str, int], killed: Mapping[str, int]) -> list[Finding]:
    more = {name: count - before.get(name, 0) for name, count in _restarts(stack).items()}
    return [
        Finding("started too often", name, f"{count} times, {killed.get(name, 0)} of them after a kill")
        for name, count in more.items()
        if count - killed.get(name, 0) > STARTS
    ]


def _attempted_too_often(kills: int) -> list[Finding]:
    with postgres.transaction("pulse_pipeline") as connection:
        rows = connection.execute(ATTEMPTS, [STARTS + kills]).fetchall()
    return [Finding("attempted too often", batch, f"{attempt} times") for batch, attempt in rows]
