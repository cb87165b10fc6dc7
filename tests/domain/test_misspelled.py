"""The name that a misspelled one stands for."""

import pytest
from support.conform import TENANT, dataset

from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.event_limits import UNLIMITED
from pulse_pipelines.domain.misspelled import Spellings
from pulse_pipelines.validation.validator import Refusal, Validator

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


def test_a_lookup_finds_the_nearest_of_a_thousand_names() -> None:
    names = [f"dataset_{number:05}" for number in range(1_000)]
    assert Spellings(names).nearest("dataset_0x500") == "dataset_00500"


def test_a_verdict_names_the_dataset_that_is_probably_meant() -> None:
    validator = Validator(Scope(TENANT, (dataset({"type": "object"}),)), UNLIMITED)
    for name, detail in (("order", "'order': is it orders?"), ("visits", "'visits'")):
        verdict = validator.payload(b'{"dataset": "%s"}' % name.encode())
        assert isinstance(verdict, Refusal)
        assert verdict.rejected.detail == f"the tenant has no dataset {detail}"
