"""Page with the latest result of each attack, and its data as JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from chaos.harm import memory
from chaos.harm.measure import FLOORS_MS, LIMIT, SETTLED_FLOOR_S, Result
from chaos.harm.neighbour import EVERY, LARGE, RATES
from chaos.report import Circumstances, circumstances

INTRODUCTION = """\
The effect of attacks by a tenant, or by somebody without a key, on another tenant: on {cores} cores and
{memory:.0f} GiB, by `make harm`, with Pulse's default settings.

**The neighbour** is an honest tenant, in a process of its own: {collect} requests per second to
`POST /v1/collect` (one of {every} has {large} events, the others one), {preview} previews and {ready}
`GET /readyz`. Requests are due at this rate whether or not earlier ones are answered, and their duration
counts from the due time. It is measured for some time *quiet*, then as long *beside* the attack: p99 in
milliseconds. Meanwhile its events are ingested: *settled* is the longest time from received to settled, of
batches whose first event arrived in that period, if any.

**The attackers** use another source address, in processes of the lowest priority, while the neighbour's
process has the highest: in reality both are on other machines. Each attack has a tenant and keys of its own.

**The bounds**: p99 beside the attack is at most {limit:g} × quiet, or {floor:.0f} ms if that is more, which
is the goal for an honest collect (preview: {floor_preview:.0f} ms, three times the goal for its p95);
*settled* likewise, or {settled:.0f} s. Quiet is the p99 right before the attack, or the median of those
before all attacks if that is longer: a single window of {seconds:.0f} s may happen to be without a batch.
Every response to the neighbour is a success, and each of its accepted events is one row. The attacker gets
its share, or a response that says what is wrong and when to retry: a problem document, `Retry-After`. No part
of Pulse exceeds its memory bound (the second table); memory shared by forked processes of a part, such as
Spark's workers and Dagster's runs, counts once.

To repeat one of them: `python -m chaos harm --only "half-sent"`; to list all: `python -m chaos harm list`.
"""
SHOWN = 4
"""Kinds of responses named in the table."""


class StoredResult(Circumstances):
    """A result with its date, commit and machine."""

    result: Result


_STORED = TypeAdapter(dict[str, StoredResult])


def keep(page: Path, results: Sequence[Result], order: Sequence[str]) -> None:
    """Replace the earlier results of these attacks, and write the page.

    Args:
        page: the results are beside it, as JSON.
        results: of attacks in `order`.
        order: names of the attacks on the page, in order; other results are dropped.
    """
    file = page.with_suffix(".json")
    entries = _STORED.validate_json(file.read_bytes()) if file.exists() else {}
    now = circumstances()
    entries |= {result.name: StoredResult(result=result, **now.model_dump()) for result in results}
    entries = {name: entries[name] for name in order if name in entries}
    file.write_bytes(_STORED.dump_json(entries, indent=1) + b"\n")
    page.write_text(_page(list(entries.values())))


def _page(entries: Sequence[StoredResult]) -> str:
    introduction = INTRODUCTION.format(
        cores=entries[-1].cores,
        memory=entries[-1].memory_gib,
        collect=RATES["collect"],
        preview=RATES["preview"],
        ready=RATES["readyz"],
        every=EVERY,
        large=LARGE,
        limit=LIMIT,
        floor=FLOORS_MS["collect"],
        floor_preview=FLOORS_MS["preview"],
        settled=SETTLED_FLOOR_S,
        seconds=entries[-1].result.quiet.ended - entries[-1].result.quiet.began,
    )
    lines = [
        "# Isolation: results of the latest attacks",
        "",
        introduction,
        "| attack | key | the attacker gets | collect: quiet, beside, ratio | preview | readyz | settled, s "
        "| memory | findings |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_line(entry.result) for entry in entries),
        "",
        "## Peak memory of each part",
        "",
        *_peaks(entries),
        "",
        "## Day and commit of each result",
        "",
        "| attack | requests of the neighbour | on | of |",
        "|---|---|---|---|",
        *(f"| {e.result.name} | {e.result.beside.requests:,} | {e.day} | {e.commit} |" for e in entries),
    ]
    return "\n".join(lines) + "\n"


def _line(result: Result) -> str:
    kinds = (_figures(result, kind) for kind in ("collect", "preview", "readyz"))
    settled = ", ".join(
        f"{s.settled_s:.0f}" if s.settled_s else "none" for s in (result.quiet, result.beside)
    )
    peak = f"api {result.peaks_mib.get('api', 0):,.0f}"
    findings = "; ".join(result.findings()) or "none"
    cells = (result.name, result.key, answers(result.answers), *kinds, settled, f"{peak} MiB", findings)
    return "| " + " | ".join(cells) + " |"


def answers(counts: Mapping[str, int]) -> str:
    """The attacker's results, most frequent first."""
    often = sorted(counts.items(), key=lambda entry: -entry[1])
    shown = [f"{count:,} × {problem}" for problem, count in often[:SHOWN]]
    return ", ".join(shown) + (f" and {len(often) - SHOWN} others" if len(often) > SHOWN else "")


def _figures(result: Result, kind: str) -> str:
    return f"{result.quiet_ms(kind):.0f}, {result.beside.p99_ms[kind]:.0f}, {result.ratio(kind):.1f} ×"


def _peaks(entries: Sequence[StoredResult]) -> list[str]:
    lines = ["| part | MiB | bound | in |", "|---|---|---|---|"]
    for part, bound in memory.BOUNDS_MIB.items():
        peaks = [(entry.result.peaks_mib.get(part, 0.0), entry.result.name) for entry in entries]
        peak, name = max(peaks)
        lines.append(f"| {part} | {peak:,.0f} | {bound:,} | {name if peak else ''} |")
    return lines
