"""What the tests measured, kept beside the page that is written from it.

With FIDELITY_PAGE=1 the tests write both anew: `docs/fidelity.json` and `docs/fidelity.md`.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from fidelity.known import Cell, change
from fidelity.lake_of_values import Lake, Sent, sent_data

PAGE = Path(__file__).parents[2] / "docs" / "fidelity.md"
_PLACE = re.compile(r"at /|char \d+|nested|a key")
_POSITION = re.compile(r": line \d+ column \d+ \(char \d+\)")
Changes = dict[str, list[str]]
"""By value: the keys of the documented changes, and what came."""


def kept() -> dict[str, Any]:
    """What was measured when the page was written."""
    file = PAGE.with_suffix(".json")
    return json.loads(file.read_text()) if file.exists() else {"in": {}, "out": {}}


def hold(section: str, door: str, measured: Mapping[str, Any]) -> None:
    """Compare what was measured of a door with the page, or write it there."""
    page = kept()
    measured = json.loads(json.dumps(measured))
    if os.environ.get("FIDELITY_PAGE"):
        from fidelity.page import written

        page[section] = dict(sorted((page[section] | {door: measured}).items()))
        PAGE.with_suffix(".json").write_text(json.dumps(page, indent=1, sort_keys=True) + "\n")
        PAGE.write_text(written(page))
        return
    assert page[section].get(door) == measured, f"docs/fidelity.md says otherwise of {door}"


def changes(some: Iterable[Sent], lake: Lake, came: Mapping[str, Any], door: str) -> dict[str, Changes]:
    """By event id: what is changed, and as documented. Fails for other changes, and for what is missing."""
    found: dict[str, Changes] = {}
    wrong = []
    for one in some:
        if one.event_id in lake.refused:
            assert one.event_id not in came, f"{one.event_id} was refused, and is there"
            continue
        if one.event_id not in came:
            wrong.append(f"{one.event_id} {one.value.key}: missing")
            continue
        cell = Cell(one.value, one.place, one.door, door, sent_data(one), came[one.event_id])
        keys = change(cell)
        if keys is None:
            wrong.append(f"{one.event_id} {one.value.key}: {one.data[:150]} became {str(cell.came)[:150]}")
        elif keys:
            found[one.event_id] = {one.value.name: [keys, told(cell.came)]}
    assert not wrong, "\n".join(wrong)
    return found


def told(came: Any) -> str:
    """What came, for people: JSON in ASCII, short."""
    text = _json(came)
    return text if len(text) <= 80 else f"{text[:40]} ..."


def _json(value: Any) -> str:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(name)}: {_json(item)}' for name, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_json, value))}]"
    return json.dumps(value)


def of_door_in(some: Iterable[Sent], lake: Lake, changed: Mapping[str, Changes]) -> dict[str, Any]:
    """By place and kind: how many values are exact, which are changed, and which refused, with the words."""
    found: dict[str, Any] = {}
    for one in some:
        entry = found.setdefault(one.place, {}).setdefault(one.value.kind, {"exact": 0})
        if words := lake.refused.get(one.event_id):
            assert _PLACE.search(words), f"{one.value.key}: {words!r} names no place"
            entry.setdefault("refused", {})[one.value.name] = _POSITION.sub("", words)
        elif one.event_id in changed:
            entry.setdefault("changed", {}).update(changed[one.event_id])
        else:
            entry["exact"] += 1
    return found
