"""Spark SQL as sqlglot reads and writes it, without what would make another query of it.

sqlglot writes queries for many engines: it takes formats of dates to Python's and back (`y` becomes `yyyy`),
makes approximate percentiles of exact ones, leaves out the format of `to_char`, and takes a doubled quote for
the end of one text and the beginning of another.
"""

from itertools import pairwise

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator

from pulse_resources.errors import UserError

_QUOTES = "'\""
_WITH_PERCENTILES = {
    kind: write for kind, write in SparkGenerator.TRANSFORMS.items() if kind is not exp.WithinGroup
}


class ExactSpark(Spark):
    """Spark's dialect, with formats, percentiles and `to_char` as they are."""

    TIME_MAPPING: dict[str, str] = {}  # noqa: RUF012 - as sqlglot declares it

    class Generator(SparkGenerator):
        """Writes them."""

        TRANSFORMS = _WITH_PERCENTILES | {
            exp.ToChar: lambda self, call: self.func("TO_CHAR", call.this, call.args.get("format"))
        }


def parsed(text: str) -> list[exp.Expr]:
    """The statements of a text. Raises UserError: it cannot be parsed."""
    try:
        statements = sqlglot.parse(_without_doubled_quotes(text), dialect=ExactSpark)
    except sqlglot.errors.SqlglotError as error:
        raise UserError(f"the SQL cannot be parsed: {error}"[:500]) from error
    return [statement for statement in statements if statement is not None]


def written(query: exp.Expr) -> str:
    """A query as Spark SQL. Raises UserError: sqlglot would leave out a part of it."""
    try:
        return query.sql(dialect=ExactSpark, comments=False, unsupported_level=sqlglot.ErrorLevel.RAISE)
    except sqlglot.errors.UnsupportedError as error:
        raise UserError(f"a part of the query cannot be used here: {error}"[:500]) from error


def _without_doubled_quotes(text: str) -> str:
    """The text with `\\'` in the place of each `''` within a text: Spark reads both as one quote."""
    escaped, begin = "", 0
    for token, following in pairwise(sqlglot.tokenize(text, dialect=ExactSpark)):
        quote = text[token.end]
        if following.start != token.end + 1 or quote not in _QUOTES or text[following.start] != quote:
            continue
        if TokenType.RAW_STRING in (token.token_type, following.token_type):
            raise UserError("a raw text has a doubled quote", fix="Write it without r, and the quote as \\'")
        escaped += f"{text[begin : token.end]}\\"
        begin = following.start
    return escaped + text[begin:]
