"""What was done, what was sent, and what the oracle found; as a page that is kept."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from chaos.oracle import Finding
from chaos.sent import Sent

INTRODUCTION = """\
On {}, on {} cores and {:.0f} GiB, by `make chaos`. Each scenario sends events of many kinds (valid
ones of two datasets, copies, late ones, six kinds of bad ones) while it does its harm. Then the oracle
(`chaos/oracle.py`) accounts for every message by position and by event id, reads the tables with PyIceberg,
DuckDB and Spark, and looks at every live file. *Recovered* is the time from the end of the harm until
everything that had been acknowledged by then was settled.
"""


@dataclass(frozen=True)
class Result:
    """One scenario."""

    name: str
    command: str
    """That repeats it, with its seed."""
    harm: str
    """How much was done."""
    sent: Sequence[Sent]
    findings: Sequence[Finding]
    took_s: float
    recovered_s: float | None = None
    places: dict[str, int] = field(default_factory=dict)
    error: str | None = None
    """Why it did not come to its end."""

    @property
    def passed(self) -> bool:
        return not self.findings and self.error is None

    @property
    def events(self) -> int:
        return sum(len(each.events) for each in self.sent)


def write(path: Path, results: Sequence[Result]) -> None:
    """The page, in Markdown."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    lines = [
        "# The last chaos run",
        "",
        INTRODUCTION.format(date.today().isoformat(), os.cpu_count(), memory),
        "| scenario | harm | events | findings | recovered | took | again |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        found = result.error or ("none" if result.passed else "; ".join(f.kind for f in result.findings))
        recovered = "" if result.recovered_s is None else f"{result.recovered_s:.1f} s"
        lines.append(
            f"| {result.name} | {result.harm} | {result.events:,} | {found} | {recovered} "
            f"| {result.took_s:.0f} s | `{result.command}` |"
        )
    for result in results:
        if result.places:
            lines += ["", f"## {result.name}: where", "", "| where | times |", "|---|---|"]
            lines += [f"| {place} | {times} |" for place, times in sorted(result.places.items())]
    path.write_text("\n".join(lines) + "\n")
