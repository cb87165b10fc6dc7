"""What a tenant may name below a source's address, and what it may not."""

from typing import Any

import pytest

from pulse_pipelines.domain.pipe_sources import Feed, Files, Format
from pulse_pipelines.domain.pipes import definition
from pulse_resources.errors import UserError

PIPE = {"pipe": "planes", "source": "shop", "dataset": "planes"}
ODD = (
    "../secret.csv",
    "a/../../b.csv",
    "a/./b.csv",
    "a/.hidden/b.csv",
    "/etc/passwd.csv",
    "//elsewhere.example/b.csv",
    "a//b.csv",
    "http://elsewhere.example/b.csv",
    "s3://other/b.csv",
    "a/%2e%2e/b.csv",
    "a%2f..%2fb.csv",
    "a\\..\\b.csv",
    "a/b.csv?x=1",
    "a/b.csv#x",
    "user@elsewhere:80/b.csv",
    "a/b\n.csv",
    "a/b\x00.csv",
    "a/\uff0e\uff0e/b.csv",
    "a/b.csv/",
    "*" * 9 + ".csv",
    "a" * 600 + ".csv",
)


@pytest.mark.parametrize("path", ODD)
def test_a_path_that_may_lead_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(UserError, match="not a plain one below"):
        definition(PIPE | {"path": path, "key": ["tail"], "format": "csv"})


@pytest.mark.parametrize("path", ["v1/datasets", *("/" + segment for segment in ODD), "/v1/*/entities"])
def test_a_feed_that_may_lead_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(UserError, match="path"):
        definition(PIPE | {"feed": path})


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("planes.ndjson", Format.NDJSON),
        ("planes.jsonl.gz", Format.NDJSON),
        ("a/b/planes-*.csv", Format.CSV),
        ("planes.csv.gz", Format.CSV),
        ("year=2026/*.parquet", Format.PARQUET),
    ],
)
def test_the_name_tells_the_format(path: str, form: Format) -> None:
    pipe = definition(PIPE | {"path": path, "key": ["tail"]})
    assert isinstance(pipe.other_end, Files)
    assert pipe.other_end.format is form
    assert definition(pipe.document) == pipe


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"path": "planes.txt", "key": ["tail"]}, "does not tell the files' format"),
        ({"path": "planes.txt", "key": ["tail"], "format": "xml"}, "not a format of files"),
        ({"path": "planes.parquet.gz", "key": ["tail"]}, "compressed inside"),
        ({"path": "planes.csv"}, "the pipe has no key"),
        ({"path": "planes.csv", "key": [1]}, "key must be a list"),
        ({"path": "planes.csv", "key": ["tail"], "mode": "changes"}, "a pipe has no mode"),
        ({"path": "planes.csv", "feed": "/x"}, "a pipe has no feed"),
        ({"feed": "/x", "source": "https://elsewhere"}, "a source is a name"),
    ],
)
def test_invalid_options_of_a_pipe_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        definition(PIPE | options)


def test_a_star_stands_for_anything_within_a_folder() -> None:
    files = Files("shop", "a/planes-*.csv", Format.CSV, ("tail",))
    assert [name for name in ("a/planes-1.csv", "a/planes-.csv", "a/planes-1/2.csv", "a/planesX1.csv",
                              "a/planes-1.csv.bak", "b/a/planes-1.csv") if files.matches(name)] == [
        "a/planes-1.csv", "a/planes-.csv"]  # fmt: skip
    assert files.prefix == "a/planes-"


def test_a_name_that_almost_matches_many_stars_is_compared_at_once() -> None:
    """With a pattern that tries every split this would take longer than anybody waits."""
    files = Files("shop", "*a*a*a*a*a*a*a*b.csv", Format.CSV, ("tail",))
    assert not files.matches("a" * 1_000 + ".csv")


def test_a_feed_keeps_its_given_path() -> None:
    pipe = definition(PIPE | {"feed": "/v1/datasets/planes/entities"})
    assert pipe.other_end == Feed("shop", "/v1/datasets/planes/entities")
    assert definition(pipe.document) == pipe


@pytest.mark.parametrize("number", [True, 1.10, 2026, ["planes"]])
@pytest.mark.parametrize("member", ["table", "cursor", "timestamp", "dataset", "source"])
def test_a_name_that_yaml_takes_for_another_value_is_no_name(member: str, number: object) -> None:
    """It became a text: 1.10 the table "1.1", true the table "True"."""
    with pytest.raises(UserError, match=f"{member} must be a text") as refused:
        definition(PIPE | {"table": "t", "mode": "incremental", "cursor": "id"} | {member: number})
    assert refused.value.fix == "Put it in quotes"


@pytest.mark.parametrize(("overlap", "text"), [(300, "300"), (0.5, "0.5"), ("5 minutes", "5 minutes")])
def test_an_overlap_may_be_a_number(overlap: object, text: str) -> None:
    pipe = definition(PIPE | {"table": "t", "mode": "incremental", "cursor": "id", "overlap": overlap})
    assert pipe.of_postgres.overlap == text
