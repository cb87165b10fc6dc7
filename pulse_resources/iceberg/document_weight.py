"""Weight of JSON that others wrote: its size in memory, estimated before it is parsed.

orjson makes of 60 MB of `{},{},` gigabytes, holds up all threads of its process meanwhile, and where memory
is limited fails with an error that says nothing of it.
"""

from pulse_resources.errors import Terminal

LARGEST = 20 * 1024 * 1024
"""Bytes of a metadata file; 10,000 snapshots by Spark, 2,000 columns and ten schemas have 13 MB."""
CONTAINERS = 120_000
"""Objects and arrays of a metadata file; the same table has 50,000."""
MARKS = 1_200_000
"""Structural characters, those in texts too: one or two for each value. The same table has 890,000."""

_COUNTED = 4
"""How many times as many bytes are looked at."""


class TooLarge(Terminal):
    """A metadata file that would cost too much memory or time."""


def weight(content: bytes) -> float:
    """How much JSON would become in memory, as a share of what is parsed; takes some 3 ms a megabyte."""
    if len(content) > _COUNTED * LARGEST:
        return len(content) / LARGEST
    containers = content.count(b"{") + content.count(b"[")
    marks = containers + content.count(b",") + content.count(b":")
    return max(len(content) / LARGEST, containers / CONTAINERS, marks / MARKS)


def check_weight(content: bytes, share: float = 1) -> None:
    """Raise TooLarge if JSON would become too much in memory.

    Args:
        share: of the limits.
    """
    if weight(content) > share:
        raise TooLarge(
            "the table's metadata file is too large", fix="Expire snapshots, or create the table again"
        )
