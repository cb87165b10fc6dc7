"""Page with the latest result of each scenario, and its data as JSON."""

import os
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from pydantic import BaseModel, TypeAdapter

INTRODUCTION = """\
On {cores} cores and {memory:.0f} GiB, by `make chaos`. Each scenario applies its fault while events of many
kinds are sent: valid ones of two datasets, copies, late ones, six kinds of invalid ones and, if Dagster runs,
some through `POST /v1/collect`. Then the oracle (`chaos/oracle.py`) accounts for every message by position
and by event id, reads the tables with PyIceberg, DuckDB and Spark, and checks every live file.
*Recovered* is the time from the end of the fault until everything acknowledged by then was settled.

*Operators and tenants at once* (`chaos/operators/`) has its own events and oracle, and a seed per episode:
replays, discards, moves, deletions, erasures, backfills, accepted losses, quotas, upkeep and rollups run
concurrently with batches, and are killed and repeated. When a schedule fails, the run prints its smallest
failing part, which `python -m chaos repeat` runs again.
"""


class Result(BaseModel):
    """Result of one scenario."""

    name: str
    command: str
    """Command that repeats it, with its seed."""
    harm: str = ""
    """Amount of harm done."""
    events: int = 0
    findings: Sequence[str] = ()
    took_s: float
    recovered_s: float | None = None
    places: Mapping[str, int] = {}
    error: str | None = None
    """Why it did not complete."""

    @property
    def passed(self) -> bool:
        return not self.findings and self.error is None


class Circumstances(BaseModel):
    """Date, commit and machine of a result."""

    day: date
    commit: str
    cores: int
    memory_gib: float


class StoredResult(Circumstances):
    """A result with its circumstances."""

    result: Result


_STORED = TypeAdapter(list[StoredResult])


def keep(page: Path, result: Result, order: Sequence[str], run_circumstances: Circumstances) -> None:
    """Replace the scenario's earlier results, and write the page.

    Results of other seeds stay beside it, if they are of the same commit.

    Args:
        order: names of the scenarios on the page, in order; other results are dropped.
        run_circumstances: of the result.
    """
    file = page.with_suffix(".json")
    new = StoredResult(result=result, **run_circumstances.model_dump())
    earlier = _STORED.validate_json(file.read_bytes()) if file.exists() else []
    entries = [entry for entry in (*earlier, new) if entry is new or not _replaces(new, entry)]
    entries = [entry for name in order for entry in entries if entry.result.name == name]
    file.write_bytes(_STORED.dump_json(entries, indent=1) + b"\n")
    page.write_text(_page(entries))


def _replaces(new: StoredResult, earlier: StoredResult) -> bool:
    of_same_seed = new.result.command == earlier.result.command
    return new.result.name == earlier.result.name and (of_same_seed or new.commit != earlier.commit)


def circumstances() -> Circumstances:
    """Circumstances of a result made now."""
    command = ["git", "rev-parse", "--short=9", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Circumstances(day=date.today(), commit=commit, cores=os.cpu_count() or 1, memory_gib=memory)


def _page(entries: Sequence[StoredResult]) -> str:
    lines = [
        "# Results of the latest chaos runs",
        "",
        INTRODUCTION.format(cores=entries[-1].cores, memory=entries[-1].memory_gib),
        "| scenario | harm | events | findings | recovered | took | on | of |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for entry in entries:
        result = entry.result
        findings = result.error or "; ".join(result.findings) or "none"
        recovered = "" if result.recovered_s is None else f"{result.recovered_s:.1f} s"
        lines.append(
            f"| {result.name} | {result.harm} | {result.events:,} | {findings} | {recovered} "
            f"| {result.took_s:.0f} s | {entry.day} | {entry.commit} |"
        )
    commands = [entry.result.command for entry in entries]
    lines += ["", "To repeat each with the same seed:", "", "```", *commands, "```"]
    for name, places in _places(entries).items():
        lines += ["", f"## {name}: counts", "", "| what | times |", "|---|---|"]
        lines += [f"| {place} | {times} |" for place, times in sorted(places.items())]
    return "\n".join(lines) + "\n"


def _places(entries: Sequence[StoredResult]) -> Mapping[str, Counter[str]]:
    """How often each kind of harm was done, by scenario, over all its results."""
    findings: dict[str, Counter[str]] = {}
    for result in (entry.result for entry in entries if entry.result.places):
        findings.setdefault(result.name, Counter()).update(result.places)
    return findings
