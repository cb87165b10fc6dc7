"""The page says what was measured, of all doors, and nothing that is not so any more."""

from fidelity import record
from fidelity.known import KNOWN
from fidelity.page import DOORS_IN, DOORS_OUT, written


def test_the_page_equals_the_measured_values() -> None:
    assert record.PAGE.read_text() == written(record.recorded_page()), "write it with FIDELITY_PAGE=1"


def test_all_doors_were_measured() -> None:
    page = record.recorded_page()
    assert (set(page["in"]), set(page["out"])) == (set(DOORS_IN), set(DOORS_OUT))


def test_no_change_is_documented_that_does_not_happen() -> None:
    page = record.recorded_page()
    happened = {
        key
        for places in page["in"].values()
        for kinds in places.values()
        for entry in kinds.values()
        for keys, _ in entry.get("changed", {}).values()
        for key in keys.split("+")
    }
    happened |= {
        key for door in page["out"].values() for keys in door["differs"].values() for key in keys.split("+")
    }
    assert happened == set(KNOWN)
