"""What runs of a team's query is written by sqlglot: it has the values of the query as it was written."""

import pytest
from pyspark.sql.connect.session import SparkSession
from support.lake import spark

from pulse_pipelines.curated.query_check import check_query
from pulse_resources.errors import UserError
from pulse_resources.settings import Settings

ROWS = """(SELECT *, DATE '0987-03-01' AS day FROM
    VALUES (7, 1.5D, 'O\\'Brien'), (3, 2.5D, 'b 2'), (2, -1D, 'b 2'), (NULL, 0D, NULL) AS rows (n, x, s))"""
QUERIES = (
    "SELECT n FROM events WHERE s = 'O''Brien'",
    """SELECT 'a''''b' AS a, '''' AS b, '' AS c, "x""y'" AS d, "it''s" AS e, 'a' 'b' AS f, 'q\\'''' AS g""",
    "SELECT n AS `a``b` FROM events WHERE n = 7 -- don''t\n",
    "SELECT to_char(x, '99.99') AS a, to_char(date_trunc('DAY', day), 'yyyy') AS b FROM events",
    "SELECT date_format(day, 'y') AS a, date_format(day, 'E, d MMM yyyy') AS b FROM events",
    "SELECT date_format(day, '% yyyy') AS a, to_date('%m-1-3', '%\\'m\\'-d-M') AS b FROM events",
    "SELECT percentile_cont(0.4) WITHIN GROUP (ORDER BY n) AS a FROM events",
    "SELECT percentile_disc(0.2) WITHIN GROUP (ORDER BY n DESC) AS a FROM events",
)


@pytest.fixture
def session(stack: Settings) -> SparkSession:
    session = spark()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_has_the_values_that_it_has_as_it_was_written(session: SparkSession, query: str) -> None:
    expected, result = (
        session.sql(f"WITH events AS {ROWS} {text}").toArrow()
        for text in (query, check_query(query, "rollup", only="events").text)
    )
    assert result.equals(expected)


def test_what_cannot_be_written_as_it_was_is_refused() -> None:
    with pytest.raises(UserError, match="raw text has a doubled quote"):
        check_query("SELECT r'a''b' AS a FROM events", "rollup", only="events")
