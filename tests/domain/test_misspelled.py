"""The name that a misspelled one stands for."""

import pytest

from pulse_pipelines.domain.misspelled import Spellings

SPELLINGS = Spellings(["orders", "page_views", "ab"])


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("order", "orders"),
        ("orderss", "orders"),
        ("odrers", "orders"),
        ("0rders", "orders"),
        ("Orders", "orders"),
        ("page-views", "page_views"),
        ("visits", None),
        ("", None),
        ("x", None),
        ("orders" * 10_000, None),
    ],
)
def test_the_nearest_name(name: str, nearest: str | None) -> None:
    assert SPELLINGS.nearest(name) == nearest


def test_what_a_lookup_costs_does_not_grow_with_the_names() -> None:
    names = [f"dataset_{number:05}" for number in range(1_000)]
    assert Spellings(names).nearest("dataset_0x500") == "dataset_00500"
