"""Objects are deleted without a trace of their folders' names."""

import uuid
from pathlib import Path

import pytest
from support.objects import names

from pulse_resources import object_store
from pulse_resources.settings import load_settings
from pulse_resources.store_keys.store_key import StoreKey

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(stack: object) -> str:
    return f"s3://{load_settings().object_store.bucket}/test/{uuid.uuid4().hex}"


def test_deleted_objects_leave_nothing_behind(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "DELETES", 2)
    paths = [f"{folder}/email=ada+é @x/{number} %.parquet" for number in range(5)]
    for path in (*paths, f"{folder}/kept"):
        object_store.put(path, b"x")
    assert object_store.delete([*paths, f"{folder}/never"]) == 6
    assert names(folder) == ["kept"]
    assert object_store.delete([]) == 0


def test_a_deletion_that_is_refused_is_an_error(folder: str) -> None:
    object_store.put(f"{folder}/a", b"x")
    with pytest.raises(OSError, match="cannot delete"):
        object_store.delete([f"{folder}/a"], StoreKey("nobody", "x" * 40, None))
    assert names(folder) == ["a"]


def test_nothing_is_deleted_by_arrow() -> None:
    """It would leave an empty object of the folder's name."""
    sources = [
        path
        for package in ("pulse_api", "pulse_pipelines", "pulse_resources")
        for path in (ROOT / package).rglob("*.py")
    ]
    assert [str(path) for path in sources if ".delete_file(" in path.read_text()] == []
