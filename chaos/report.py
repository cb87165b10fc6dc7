"""The page about the last run of each scenario, and the results that it is made of."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from pydantic import BaseModel, TypeAdapter

INTRODUCTION = """\
On {cores} cores and {memory:.0f} GiB, by `make chaos`. Each scenario sends events of many kinds (valid
ones of two datasets, copies, late ones, six kinds of bad ones, and where Dagster runs also some through
`POST /v1/collect`) while it does its harm. Then the oracle (`chaos/oracle.py`) accounts for every message by
position and by event id, reads the tables with PyIceberg, DuckDB and Spark, and looks at every live file.
*Recovered* is the time from the end of the harm until everything that had been acknowledged by then was
settled.

*Operators and tenants at once* has events, a judge and a seed per episode of its own (`chaos/operators/`):
schedules of replays, discards, moves, deletions, erasures, backfills, accepted losses, quotas, upkeep and
rollups are carried out side by side with batches, killed and repeated. Where one goes wrong, the run prints
the least of its schedule that still does, and `python -m chaos repeat` carries it out again.
"""


class Result(BaseModel):
    """One scenario."""

    name: str
    command: str
    """That repeats it, with its seed."""
    harm: str = ""
    """How much was done."""
    events: int = 0
    findings: Sequence[str] = ()
    took_s: float
    recovered_s: float | None = None
    places: Mapping[str, int] = {}
    error: str | None = None
    """Why it did not come to its end."""

    @property
    def passed(self) -> bool:
        return not self.findings and self.error is None


class Circumstances(BaseModel):
    """What a result is true of."""

    day: date
    commit: str
    cores: int
    memory_gib: float


class Kept(Circumstances):
    """A result with what it is true of."""

    result: Result


_KEPT = TypeAdapter(dict[str, Kept])


def keep(page: Path, result: Result, order: Sequence[str]) -> None:
    """Put a result in the place of the last one of its scenario, and write the page anew.

    Args:
        order: of the scenarios' names on the page; those that it lacks are on it no more.
    """
    file = page.with_suffix(".json")
    kept = _KEPT.validate_json(file.read_bytes()) if file.exists() else {}
    kept[result.name] = Kept(result=result, **circumstances().model_dump())
    kept = {name: kept[name] for name in order if name in kept}
    file.write_bytes(_KEPT.dump_json(kept, indent=1) + b"\n")
    page.write_text(_page(list(kept.values())))


def circumstances() -> Circumstances:
    """What is true of a result of today, here."""
    command = ["git", "rev-parse", "--short=9", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Circumstances(day=date.today(), commit=commit, cores=os.cpu_count() or 1, memory_gib=memory)


def _page(kept: Sequence[Kept]) -> str:
    lines = [
        "# The last chaos run",
        "",
        INTRODUCTION.format(cores=kept[-1].cores, memory=kept[-1].memory_gib),
        "| scenario | harm | events | findings | recovered | took | on | of |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in kept:
        result = each.result
        found = result.error or "; ".join(result.findings) or "none"
        recovered = "" if result.recovered_s is None else f"{result.recovered_s:.1f} s"
        lines.append(
            f"| {result.name} | {result.harm} | {result.events:,} | {found} | {recovered} "
            f"| {result.took_s:.0f} s | {each.day} | {each.commit} |"
        )
    lines += ["", "Each again, with the same seed:", "", "```", *(k.result.command for k in kept), "```"]
    for each in kept:
        if places := each.result.places:
            lines += ["", f"## {each.result.name}: what, how often", "", "| what | times |", "|---|---|"]
            lines += [f"| {place} | {times} |" for place, times in sorted(places.items())]
    return "\n".join(lines) + "\n"
