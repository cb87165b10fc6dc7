"""Operators and tenants at once: episodes with schedules drawn by a seed, on new tenants.

A failing schedule is shrunk; its smallest failing part is printed and stored in a file.
"""

import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from chaos import batches
from chaos.operators import http_api
from chaos.operators.draw import drawn
from chaos.operators.episode import Episode
from chaos.operators.schedule import Schedule
from chaos.operators.shrink import shrunk
from chaos.oracle import Finding
from chaos.scenario import Outcome, ReportProgress
from chaos.stack import Stack
from chaos.surroundings import with_settings

ROUNDS = (4, 25)
"""Minimum and maximum rounds of an episode."""
SHRINK_S = 1_800.0
SCHEDULES = Path(".pulse-schedules").absolute()
"""Folder of failing schedules."""
EAGER = {
    "UPKEEP__MERGE_FILES": 2,
    "UPKEEP__MERGE_MINUTES": 0,
    "UPKEEP__QUIET_HOURS": 0,
    "UPKEEP__MANIFESTS": 8,
    "UPKEEP__HISTORY_HOURS": 0,
    "UPKEEP__HISTORY_SNAPSHOTS": 5,
    "UPKEEP__HISTORY_MINIMUM": 2,
    "UPKEEP__EXPIRE_BATCH": 1,
    "UPKEEP__ORPHAN_HOURS": 0,
    "UPKEEP__SWEEP_HOURS": 0,
    "CURATED__QUIET_SECONDS": 0,
}
"""Upkeep keeps the allowed minimum, and rollups do not wait."""


def run(stack: Stack | None, seed: int, amount: float, report_progress: ReportProgress) -> Outcome:
    """Run episodes for some minutes, or until one fails; each seed is one higher than the last."""
    began, number, steps, events = time.monotonic(), 0, 0, 0
    places: Counter[str] = Counter()
    findings: Sequence[Finding] = ()
    while (passed := (time.monotonic() - began) / 60) < amount and not findings:
        report_progress(passed)
        schedule = drawn(seed + number, random.Random(seed + number).randrange(*ROUNDS))
        episode = carried_out(schedule)
        places.update(episode.places)
        number, steps, events = number + 1, steps + schedule.length, events + episode.events
        if findings := episode.findings:
            _report(schedule, findings)
    harm = f"{number} episodes, {steps:,} steps"
    return Outcome([], harm, findings, places=places, events=events)


def carried_out(schedule: Schedule) -> Episode:
    """Run one episode to its end."""
    with with_settings(**batches.ENDLESS_ATTEMPTS, **EAGER), http_api.served() as url:
        episode = Episode(schedule, url)
        episode.run()
        return episode


def _report(schedule: Schedule, findings: Sequence[Finding]) -> None:
    """Print the violations, and the smallest failing schedule."""
    SCHEDULES.mkdir(exist_ok=True)
    file = SCHEDULES / f"{schedule.seed}.json"
    schedule.keep(file)
    print(f"seed {schedule.seed}: {len(findings)} findings after {schedule.length} steps, kept in {file}")
    for finding in findings:
        print(f"  {finding}")
    least = smaller(schedule, findings)
    file = file.with_stem(f"{file.stem}-least")
    least.keep(file)
    print(f"the least that still goes wrong, {least.length} steps:\n{least}")
    print(f"again: python -m chaos repeat {file}", flush=True)


def smaller(schedule: Schedule, findings: Sequence[Finding], seconds: float = SHRINK_S) -> Schedule:
    """Smallest part of the schedule found in time that violates the same invariant."""
    kinds = {finding.kind for finding in findings}

    def wrong(candidate: Schedule) -> bool:
        try:
            candidate_findings = carried_out(candidate).findings
        except Exception as error:  # a part may stop for another reason
            print(f"  {candidate.length} steps: {type(error).__name__}: {error}", flush=True)
            return False
        return bool(kinds & {finding.kind for finding in candidate_findings})

    return shrunk(schedule, wrong, seconds, lambda s: print(f"  {s.length} steps still do", flush=True))
