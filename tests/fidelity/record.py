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

from fidelity.known import SOURCE, Cell, change
from fidelity.lake_of_values import Lake, Sent, sent_data

PAGE = Path(__file__).parents[2] / "docs" / "fidelity.md"
_PLACE = re.compile(r"at /|char \d+|nested|a key")
_POSITION = re.compile(r": line \d+ column \d+ \(char \d+\)")
Changes = dict[str, list[str]]
"""By value: the keys of the documented changes, and what came."""


def recorded_page() -> dict[str, Any]:
    """What was measured when the page was written."""
    file = PAGE.with_suffix(".json")
    return json.loads(file.read_text()) if file.exists() else {"in": {}, "out": {}, "postgres": {}}


def hold(section: str, door: str, measured: Mapping[str, Any]) -> None:
    """Compare what was measured of a door with the page, or write it there."""
    page = recorded_page()
    measured = json.loads(json.dumps(measured))
    if os.environ.get("FIDELITY_PAGE"):
        from fidelity.page import written

        page[section] = page.get(section, {}) | {door: measured}
        PAGE.with_suffix(".json").write_text(json.dumps(page, indent=1, sort_keys=True) + "\n")
        PAGE.write_text(written(page))
        return
    assert page.get(section, {}).get(door) == measured, f"docs/fidelity.md says otherwise of {door}"


def explained(cells: Mapping[str, Cell]) -> dict[str, Changes]:
    """By id: what is changed, and as documented. Fails for other changes."""
    keys = {key: change(cell) for key, cell in cells.items()}
    wrong = [
        f"{key} {cells[key].value.key}: {str(cells[key].sent)[:150]} became {str(cells[key].came)[:150]}"
        for key, changed in keys.items()
        if changed is None
    ]
    assert not wrong, "\n".join(wrong)
    return {
        key: {cells[key].value.name: [changed, _received_text(cells[key])]}
        for key, changed in keys.items()
        if changed
    }


def _received_text(cell: Cell) -> str:
    return short_text(next(iter(cell.came.values()), None) if cell.place == SOURCE else cell.came)


def changes(some: Iterable[Sent], lake: Lake, received: Mapping[str, Any], door: str) -> dict[str, Changes]:
    """By event id: what is changed, and as documented. Fails for other changes, and for what is missing."""
    cells = {}
    for one in some:
        assert (one.event_id in received) != (one.event_id in lake.refused), (
            f"{one.event_id}: missing, or twice"
        )
        if one.event_id in received:
            sent = sent_data(one)
            cells[one.event_id] = Cell(one.value, one.place, one.door, door, sent, received[one.event_id])
    return explained(cells)


def short_text(value: Any) -> str:
    """What came, for people: JSON in ASCII, short."""
    text = _json(value)
    return text if len(text) <= 80 else f"{text[:40]} ..."


def _json(value: Any) -> str:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(name)}: {_json(item)}' for name, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_json, value))}]"
    return json.dumps(value)


def refusal(words: str) -> str:
    """The words of a refusal, without the position. Fails if they name no place."""
    assert _PLACE.search(words), f"{words!r} names no place"
    return _POSITION.sub("", words)


def of_door_in(some: Iterable[Sent], lake: Lake, changed: Mapping[str, Changes]) -> dict[str, Any]:
    """By place and kind: how many values are exact, which are changed, and which refused, with the words."""
    entries: dict[str, Any] = {}
    for one in some:
        entry = entries.setdefault(one.place, {}).setdefault(one.value.kind, {"exact": 0})
        if words := lake.refused.get(one.event_id):
            entry.setdefault("refused", {})[one.value.name] = refusal(words)
        elif one.event_id in changed:
            entry.setdefault("changed", {}).update(changed[one.event_id])
        else:
            entry["exact"] += 1
    return entries
