"""What changes on its way, how exactly, and why. Whatever changes otherwise fails the tests."""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from itertools import combinations
from typing import Any, NamedTuple

from fidelity.readings import Twice, instant, same
from fidelity.zoo import Value

SOURCE = "source"
"""The place of a value in a table of Postgres: its kind is the type."""
OF_ENTITIES = ("entities", "sync", "ndjson", "csv", "parquet", "feed", "transform")
"""Doors in whose values become entities."""
_FLOATS = ("real", "double precision", "double precision[]")


class Cell(NamedTuple):
    """A value that came out of a door, and how it went in."""

    value: Value
    place: str
    door_in: str
    door_out: str
    sent: Any
    came: Any


class Known(NamedTuple):
    """A change that is documented."""

    what: str
    why: str
    become: Callable[[Any, Cell], Any]
    """What the change makes of what was sent."""
    applies: Callable[[Cell], bool] = lambda _: True


def of_all_values(change: Callable[[Any], Any]) -> Callable[[Any, Cell], Any]:
    """A change of all values within a value, the innermost first."""

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return change({name: walk(item) for name, item in value.items()})
        if isinstance(value, list):
            return change([walk(item) for item in value])
        return change(value)

    return lambda value, _: walk(value)


def _double(value: Any) -> Any:
    return Decimal(repr(float(value))) if isinstance(value, Decimal) else value


def _last(value: Any) -> Any:
    return dict(value) if isinstance(value, Twice) else value


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: item for name, item in value.items() if item is not None}


def _micros(value: Any, _: Cell) -> Any:
    (name, text), *_ = value.items()
    whole = instant(text)
    return {name: None if whole is None else whole // Decimal("0.000001") * Decimal("0.000001")}


def _leap(value: Any, _: Cell) -> Any:
    return {name: text and re.sub(r":60(\.\d+)?", ":59.999999", text) for name, text in value.items()}


def _visible(value: Any, _: Cell) -> Any:
    return {name: item for name, item in value.items() if not name.startswith("_")}


def _unsigned(value: Any) -> Any:
    return Decimal(0) if isinstance(value, Decimal) and value == 0 else value


def _with_lists(value: Any, cell: Cell) -> Any:
    """As PyIceberg reads rows of the dataset: the lists of objects that there are none of."""

    def thing(item: Any) -> Any:
        return {"many": []} | item if isinstance(item, dict) else item

    if not isinstance(value, dict):
        return value
    value = {name: thing(item) if name == "thing" else item for name, item in value.items()}
    return {"things": []} | value | {"things": [thing(item) for item in value.get("things") or []]}


def in_column(*kinds: str) -> Callable[[Cell], bool]:
    """Whether a value of such a kind is in a column of its type."""
    return lambda cell: cell.place == "column" and (not kinds or cell.value.kind in kinds)


KNOWN: Mapping[str, Known] = {
    "double": Known(
        "A number in a column of the type `number` is the nearest double",
        "the column is a double, of 15 digits at least; a transform, which reads columns, has no more of it."
        " Declare `string` for amounts whose digits count",
        of_all_values(_double),
        in_column("number", "list", "thing"),
    ),
    "minus": Known(
        "`-0` without a fraction is `0`, also of a `double precision` in a source",
        "it is a whole number, and these have one zero",
        of_all_values(_unsigned),
        lambda cell: "-0" in cell.value.text,
    ),
    "last": Known(
        "Of a name that is twice in an object, the last member counts",
        "JSON leaves it open, and every decoder does so",
        of_all_values(_last),
    ),
    "null": Known(
        "A property that is `null` is absent",
        "a column has one null, for what is null and what is absent. Undeclared properties keep them apart",
        of_all_values(_without_nulls),
        lambda cell: cell.place in ("column", SOURCE),
    ),
    "micros": Known(
        "Of a second, what is beyond the sixth digit is cut off",
        "all engines know Iceberg's timestamps with microseconds, few those with nanoseconds: declare"
        " `string` to keep the text",
        _micros,
        in_column("moment"),
    ),
    "leap": Known(
        "A leap second is the last microsecond before the next minute",
        "no engine's timestamps have a 61st second",
        _leap,
        in_column("moment"),
    ),
    "hidden": Known(
        "Properties of entities that begin with `_` are left out",
        "they are about the entity, not of it: [entities](entities.md#push)",
        _visible,
        lambda cell: cell.value.kind == "name" and cell.door_in in OF_ENTITIES,
    ),
    "empty": Known(
        "An empty cell of CSV is absent",
        'in a file `""` and nothing are both an empty cell',
        lambda *_: {},
        lambda cell: cell.door_in == "csv" and cell.value.text == '""',
    ),
    "lists": Known(
        "PyIceberg reads a list of objects that is absent as an empty one",
        "a fault of PyIceberg 0.12 (it builds such lists again, without their nulls); the table has null, as"
        " all other engines read it",
        _with_lists,
        lambda cell: cell.door_out == "pyiceberg" and cell.place == "column",
    ),
}


def is_exact(cell: Cell, sent: Any) -> bool:
    """Whether what came is what was sent: of instants the instant, of columns of numbers the number."""
    of_moments = cell.place == "column" and cell.value.kind == "moment"
    if (of_moments or cell.value.kind in ("timestamptz", "far")) and isinstance(cell.came, dict):
        if not cell.came or not sent:
            return bool(cell.came == sent)
        (received,), (expected,) = cell.came.values(), sent.values()
        moment = expected if isinstance(expected, Decimal) else instant(expected)
        return received is not None and moment == instant(received)
    spelled = cell.place != "column" or cell.value.kind == "any"
    if cell.value.kind in _FLOATS:
        spelled = False
    return same(sent, cell.came, spelling=spelled)


def change(cell: Cell) -> str | None:
    """The keys of the documented changes that explain a cell, `""` if it is exact; None: nothing does."""
    if is_exact(cell, cell.sent):
        return ""
    applicable = [(key, known) for key, known in KNOWN.items() if known.applies(cell)]
    for count in (1, 2, 3):
        for chosen in combinations(applicable, count):
            value = cell.sent
            for _, known in chosen:
                value = known.become(value, cell)
            if is_exact(cell, value):
                return "+".join(key for key, _ in chosen)
    return None
