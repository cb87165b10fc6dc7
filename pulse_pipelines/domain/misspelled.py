"""The name that a misspelled one stands for, in a time that does not grow with the number of names."""

from collections.abc import Iterable, Iterator

LONGEST = 64
"""Characters of a name that are considered."""
SHORTEST = 4
"""Characters of a name in which one of them may be wrong."""


class Spellings:
    """Finds the name that differs in one character, in case, or in `-` and `_`.

    A hostile sender can ask for each of its events: a lookup costs a few dozen hashes, however many names
    there are. Both the name and the misspelled one are compared without one character, at each place.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names: dict[str, str] = {}
        for name in names:
            for spelling in _spellings(name):
                self._names.setdefault(spelling, name)

    def nearest(self, name: str) -> str | None:
        """The name that is probably meant; None: no name is near."""
        return next((self._names[spelling] for spelling in _spellings(name) if spelling in self._names), None)


def _spellings(name: str) -> Iterator[str]:
    plain = name[:LONGEST].casefold().replace("-", "_")
    yield plain
    if len(plain) < SHORTEST:
        return
    yield from (plain[:at] + plain[at + 1 :] for at in range(len(plain)))
