"""docs/fidelity.md, from what the tests measured."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from fidelity.known import KNOWN
from fidelity.zoo import KINDS, ZOO, shown
from fidelity.zoo_postgres import TYPES

DOORS_IN: Mapping[str, str] = {
    "array": "collect, JSON",
    "lines": "collect, NDJSON",
    "batch": "CloudEvents, batch",
    "structured": "CloudEvents, structured",
    "binary": "CloudEvents, binary",
    "kafka": "Kafka, directly",
    "replay": "dead letter, replayed",
    "entities": "entities",
    "sync": "entities, full sync",
    "ndjson": "file, NDJSON",
    "csv": "file, CSV",
    "parquet": "file, Parquet",
    "feed": "feed",
    "transform": "transform",
}
"""As the page names them, in order."""
DOORS_OUT: Mapping[str, str] = {
    "preview": "preview, JSON",
    "preview_csv": "preview, CSV",
    "preview_arrow": "preview, Arrow",
    "sql": "SQL, JSON",
    "sql_csv": "SQL, CSV",
    "sql_arrow": "SQL, Arrow",
    "sql_parquet": "SQL, Parquet",
    "mcp": "MCP, `query`",
    "terminal": "`pulse sql`, JSON",
    "feed": "the log of entities",
    "state": "the state of a dataset",
    "ask": "a question",
    "duckdb": "DuckDB, by the catalog",
    "pyiceberg": "PyIceberg, by the catalog",
    "spark": "Spark, by the catalog",
    "sink_postgres": "a sink, a table of Postgres",
    "sink_http": "a sink, a service by HTTP",
    "backfill": "DuckDB, after a backfill from the raw zone",
}
TEXTS = {value.key: f"{{{value.member}: {value.text}}}" for value in ZOO}
SHOWN, WIDE = 5, 90
MODES = {"full": "full", "incremental": "incremental", "changes": "changes"}
"""Of pipes from Postgres."""
PLACES = {"column": "Declared", "extra": "Undeclared"}
INTRODUCTION = """\
# What goes in comes out

What you send to Pulse comes back as you sent it, is refused with words that name the place, or changes in one
of the few ways on this page. Nothing else happens at the doors below: {count} values that systems are known
to change, and {postgres} of Postgres, are sent through each door in, and read through each door out. A value
that comes back otherwise fails the tests. This page is written from their result (`tests/fidelity/`).

## What is guaranteed

- **Texts** are the same code points: nothing is normalized, trimmed, cut or escaped, whatever they look like
  (`null`, `=1+1`, `007`, `" a "`), in every format. Only NUL, and what is not Unicode text, is refused.
- **Whole numbers** of 64 bits have all their digits, in JSON, too, also if they are written with a fraction
  (`9007199254740993.0`) or an exponent. Larger ones are refused at every door, not rounded, whatever property
  has them, a `uint64` of Parquet included; the exact types of sources (`numeric`, `decimal`) become texts.
- **Numbers** of a column are doubles, each the nearest to what was sent: up to 15 digits never change.
- **Instants** from year 1 to 9999 are the same instant, to the microsecond, in UTC: the offset is not kept.
- **Dates** from year 1 to 9999 are the same date. What is not a date or an instant is refused by its column.
- **Names** may be anything that is a text: a name without a column is kept, with its value, in `_extra`.
- **Null** and absent are two things in what no column holds; in a column they are one.
- **Objects and lists** keep their members, order of items and depth (up to 64 levels); an empty one stays
  empty. The order of members, and white space, do not count.
- **The context** of an event is kept as a property that no column holds.

*Exact* below means just that: of a column of numbers the same number, of an instant the same instant, of all
else the same text and structure.
"""


def written(page: Mapping[str, Any]) -> str:
    """The page.

    Args:
        page: what was measured, as `record` keeps it.
    """
    parts = [INTRODUCTION.format(count=len(ZOO), postgres=sum(len((*t.values, *t.beyond)) for t in TYPES))]
    parts += ["## Doors in\n", _of_doors_in(page["in"])]
    parts += ["## Doors out\n", _of_doors_out(page["out"])]
    parts += ["## Tables of Postgres\n", _of_postgres(page["postgres"])]
    parts += ["## What changes, and why\n", _of_changes(page)]
    parts += ["## What is refused\n", _of_refusals(page["in"])]
    return "\n".join(parts)


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(header), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _of_doors_in(doors: Mapping[str, Any]) -> str:
    text = (
        "How many values of each kind are exact; with *c* how many change, with *r* how many are refused."
        " Doors that share a column have one result.\n"
    )
    for place, title in PLACES.items():
        columns: dict[str, list[str]] = {}
        for door, name in DOORS_IN.items():
            if place in doors.get(door, {}):
                cells = tuple(_cell(doors[door][place].get(kind)) for kind in KINDS)
                columns.setdefault("\n".join(cells), []).append(name)
        rows = [
            [KINDS[kind], *(cells.split("\n")[number] for cells in columns)]
            for number, kind in enumerate(KINDS)
        ]
        text += f"\n{title}:\n\n" + _table(["", *("; ".join(names) for names in columns.values())], rows)
    return text


def _cell(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return ""
    parts = [str(entry["exact"])]
    parts += [f"{len(entry[key])} {key[0]}" for key in ("changed", "refused") if key in entry]
    return ", ".join(parts)


def _of_doors_out(doors: Mapping[str, Any]) -> str:
    rows = []
    for door, name in DOORS_OUT.items():
        if door in doors:
            measured = doors[door]
            differs = sorted({key for keys in measured["differs"].values() for key in keys.split("+")})
            rows.append([name, f"{measured['values']:,}", ", ".join(f"[{key}](#{key})" for key in differs)])
    return (
        "Each reads the values of all doors in that landed. Beyond what changed on the way in, nothing does,"
        " except for:\n\n" + _table(["", "values", "changes"], rows)
    )


NEW: Mapping[str, Any] = {"exact": 0}
"""Of a type that was measured at other doors only, as yet."""


def _of_postgres(doors: Mapping[str, Any]) -> str:
    columns = {name: doors[door] for door, name in MODES.items() if door in doors}
    rows = [
        [
            _code(kind),
            *(_cell(measured.get(kind, NEW)) for measured in columns.values()),
            _refused(measured[kind]),
        ]
        for measured in list(columns.values())[:1]
        for kind in measured
    ]
    text = (
        "By a pipe into a dataset of entities, each value is what [the table of types](pipes.md#types) says,"
        " in each mode; and by a sink into a table of the same types it is, as Postgres writes it, the value"
        " that it was, except for the few that changed on the way in.\n\n"
    )
    return text + _table(["type", *columns, "refused"], rows)


def _refused(entry: Mapping[str, Any]) -> str:
    return "; ".join(_code(name) for name in entry.get("refused", {}))


def _of_changes(page: Mapping[str, Any]) -> str:
    examples: dict[str, dict[str, str]] = defaultdict(dict)
    where: dict[str, dict[str, None]] = defaultdict(dict)
    for door, name in DOORS_IN.items():
        for kinds in page["in"].get(door, {}).values():
            for kind, entry in kinds.items():
                for value, (keys, text) in entry.get("changed", {}).items():
                    for key in keys.split("+"):
                        examples[key].setdefault(f"{kind}: {value}", text)
                        where[key][name] = None
    for door, name in MODES.items():
        for kind, entry in page["postgres"].get(door, {}).items():
            for value, (keys, text) in entry.get("changed", {}).items():
                for key in keys.split("+"):
                    examples[key].setdefault(f"{kind}: {value}", text)
                    where[key][f"Postgres, {name}"] = None
    for door, name in DOORS_OUT.items():
        for value, keys in page["out"].get(door, {}).get("differs", {}).items():
            for key in keys.split("+"):
                examples[key].setdefault(value, "")
                where[key][name] = None
    return "".join(_of_change(key, examples[key], list(where[key])) for key in KNOWN if key in examples)


def _of_change(key: str, examples: Mapping[str, str], where: list[str]) -> str:
    known = KNOWN[key]
    but = [name for name in DOORS_IN.values() if name not in where]
    other_doors = "".join(f"; {name}" for name in where if name not in DOORS_IN.values())
    doors = f"at {'; '.join(where)}"
    if len(but) < len(where):
        doors = "at all doors in" + (f" but {'; '.join(but)}" if but else "") + other_doors
    count = f"{len(examples)} value{'s' * (len(examples) > 1)}"
    text = f"### {key}\n\n**{known.what}**: {known.why}. {count}, {doors}, such as:\n\n"
    chosen = sorted(examples.items(), key=lambda pair: len(TEXTS.get(pair[0], pair[0])))[:SHOWN]
    rows = [[_code(TEXTS.get(value, value)), _code(text)] for value, text in chosen if text]
    return text + _table(["sent", "came"], rows) + "\n" if rows else text.replace(", such as:", ".")


def _of_refusals(doors: Mapping[str, Any]) -> str:
    names_by_reason: dict[str, dict[str, None]] = defaultdict(dict)
    for door in doors.values():
        for kinds in door.values():
            for kind, entry in kinds.items():
                for name, words in entry.get("refused", {}).items():
                    reason = words.partition(":")[0].partition(" at ")[0]
                    if not reason.startswith("400"):  # the reason of a body, which has nothing else
                        names_by_reason[reason][f"{kind}: {name}"] = None
    rows = [
        [f"`{reason}`", "; ".join(_code(shown(name, 48)) for name in sorted(names))]
        for reason, names in sorted(names_by_reason.items())
    ]
    return (
        "A door of HTTP refuses the event, and says why and where; what comes by Kafka or by a pipe becomes a"
        " [dead letter](reasons.md) with the same words. An element of an array, or a line, that is not JSON"
        " is refused alone, with the place of the first character that is wrong; a body whose brackets and"
        " commas do not show where its events are is refused whole (400). All of these,"
        " and nothing else, are refused by one door or another:\n\n" + _table(["reason", "values"], rows)
    )


def _code(text: str) -> str:
    text = text.encode("ascii", "backslashreplace").decode().replace("|", "\\|")
    text = text.translate({code: f"\\x{code:02x}" for code in range(32)})
    text = text if len(text) <= WIDE else f"{text[:WIDE]} ..."
    return f"`` {text} ``" if "`" in text else f"`{text}`" if text else ""
