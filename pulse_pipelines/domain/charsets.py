"""Charsets that a Content-Type or a byte order mark names: text is UTF-8, other charsets are refused."""

import codecs
import re

_UTF8 = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})
"""Charsets whose text is the same in UTF-8."""
MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
"""Marks of other encodings; UTF-32 LE begins as UTF-16 LE."""
LONGEST_MARK = len(codecs.BOM_UTF32_BE)
_PARAMETER = re.compile(r';\s*([^\s=;"]+)\s*=\s*("(?:[^"\\]|\\.)*"?|[^;]*)', re.DOTALL)
_SHOWN = 40


def foreign(content_type: str) -> str | None:
    """The first 40 characters of the charset that a Content-Type names; None if it is UTF-8 or ASCII."""
    if "charset" not in content_type.lower():
        return None
    for name, value in _PARAMETER.findall(content_type):
        charset = value.strip().strip('"').lower()
        if name.lower() == "charset" and charset not in _UTF8:
            return str(charset[:_SHOWN])
    return None
