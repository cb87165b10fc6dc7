"""The page about the last result of each attack, and the results that it is made of."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from chaos.harm import memory
from chaos.harm.measure import FLOORS_MS, LIMIT, SETTLED_FLOOR_S, Result
from chaos.harm.neighbour import EVERY, LARGE, RATES
from chaos.report import Circumstances, circumstances

INTRODUCTION = """\
What a tenant, or who has no key at all, can do to his neighbour: on {cores} cores and {memory:.0f} GiB, by
`make harm`, with the settings that Pulse has where nobody sets any.

**The neighbour** is an honest tenant, in a process of its own: {collect} requests per second to
`POST /v1/collect` (one of {every} has {large} events, the others one), {preview} previews and {ready}
`GET /readyz`. They are due at this rate whether or not those before them are answered, and each takes from
the moment that it was due. He is measured for some time *quiet*, then as long *beside* the attack: p99 in
milliseconds. Meanwhile his events are ingested: *settled* is the longest from received to settled, of batches
whose first event came in that time, if any.

**The attackers** ask from another address, in processes that use what the others leave of the processors, and
the neighbour's comes before all others: in reality they are on other machines. Each attack has a tenant and
keys of its own.

**The bounds**: p99 beside the attack is at most {limit:g} × quiet, or {floor:.0f} ms where that is more,
which is what an honest collect is promised (preview: {floor_preview:.0f} ms, three times its promised p95);
*settled* the same, or {settled:.0f} s. Quiet is the p99 right before the attack, or the median of those
before all attacks where that is longer: one window of {seconds:.0f} s may happen to be without a batch. The
neighbour is always answered well, and each event that he was promised is one row. The attacker gets what is
his share, or an answer that says what is wrong and when to come again: a problem document, `Retry-After`.
No part of Pulse takes more memory than it may (the second table); where its processes are copies of one, as
Spark's workers and Dagster's runs are, what they share counts once.

One of them again: `python -m chaos harm --only "half-sent"`; all of them: `python -m chaos harm list`.
"""
SHOWN = 4
"""Kinds of answers named in the table."""


class Kept(Circumstances):
    """A result with what it is true of."""

    result: Result


_KEPT = TypeAdapter(dict[str, Kept])


def keep(page: Path, results: Sequence[Result], order: Sequence[str]) -> None:
    """Put results in the place of the last ones of their attacks, and write the page anew.

    Args:
        page: the results are beside it, as JSON.
        results: at least one.
        order: of the attacks' names on the page; those that it lacks are on it no more.
    """
    file = page.with_suffix(".json")
    kept = _KEPT.validate_json(file.read_bytes()) if file.exists() else {}
    now = circumstances()
    kept |= {result.name: Kept(result=result, **now.model_dump()) for result in results}
    kept = {name: kept[name] for name in order if name in kept}
    file.write_bytes(_KEPT.dump_json(kept, indent=1) + b"\n")
    page.write_text(_page(list(kept.values())))


def _page(kept: Sequence[Kept]) -> str:
    introduction = INTRODUCTION.format(
        cores=kept[-1].cores,
        memory=kept[-1].memory_gib,
        collect=RATES["collect"],
        preview=RATES["preview"],
        ready=RATES["readyz"],
        every=EVERY,
        large=LARGE,
        limit=LIMIT,
        floor=FLOORS_MS["collect"],
        floor_preview=FLOORS_MS["preview"],
        settled=SETTLED_FLOOR_S,
        seconds=kept[-1].result.quiet.ended - kept[-1].result.quiet.began,
    )
    lines = [
        "# Isolation: the last attacks",
        "",
        introduction,
        "| attack | key | the attacker gets | collect: quiet, beside, ratio | preview | readyz | settled, s "
        "| memory | findings |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_line(each.result) for each in kept),
        "",
        "## The highest that each part reached",
        "",
        *_peaks(kept),
        "",
        "## Of which day and commit",
        "",
        "| attack | requests of the neighbour | on | of |",
        "|---|---|---|---|",
        *(f"| {e.result.name} | {e.result.beside.requests:,} | {e.day} | {e.commit} |" for e in kept),
    ]
    return "\n".join(lines) + "\n"


def _line(result: Result) -> str:
    kinds = (_figures(result, kind) for kind in ("collect", "preview", "readyz"))
    settled = ", ".join(
        f"{s.settled_s:.0f}" if s.settled_s else "none" for s in (result.quiet, result.beside)
    )
    peak = f"api {result.peaks_mib.get('api', 0):,.0f}"
    found = "; ".join(result.findings()) or "none"
    cells = (result.name, result.key, answers(result.seen), *kinds, settled, f"{peak} MiB", found)
    return "| " + " | ".join(cells) + " |"


def answers(seen: Mapping[str, int]) -> str:
    """What an attacker got, the most frequent first."""
    often = sorted(seen.items(), key=lambda entry: -entry[1])
    said = [f"{count:,} × {what}" for what, count in often[:SHOWN]]
    return ", ".join(said) + (f" and {len(often) - SHOWN} others" if len(often) > SHOWN else "")


def _figures(result: Result, kind: str) -> str:
    return f"{result.quiet_ms(kind):.0f}, {result.beside.p99_ms[kind]:.0f}, {result.ratio(kind):.1f} ×"


def _peaks(kept: Sequence[Kept]) -> list[str]:
    lines = ["| part | MiB | bound | in |", "|---|---|---|---|"]
    for part, bound in memory.BOUNDS_MIB.items():
        found = [(each.result.peaks_mib.get(part, 0.0), each.result.name) for each in kept]
        peak, name = max(found)
        lines.append(f"| {part} | {peak:,.0f} | {bound:,} | {name if peak else ''} |")
    return lines
