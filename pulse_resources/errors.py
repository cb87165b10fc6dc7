"""Exception hierarchy; each class says whether a retry can help.

    PulseError                 an error for people to read; `fix` says what to do next
    ├── UserError              the request is wrong: change it (CLI exit code 2)
    │   ├── AlreadyExists
    │   ├── NotFound
    │   ├── Conflict           the current state does not allow the request
    │   │   └── Incompatible   a schema version that a dataset cannot follow
    │   ├── Forbidden          the caller may not grant or do this
    │   └── QuotaExceeded      a limit of the tenant is reached
    ├── Transient              an outside system failed: the same work may succeed later
    ├── Terminal               will fail again for this dataset or topic; others can continue
    │   └── Gone               a file of a table is missing
    └── Fenced                 a newer attempt owns the batch: stop, change nothing

The class decides between retry and dead letter; nothing parses messages.
"""

import difflib
import json
import re
from collections.abc import Collection, Iterable
from typing import Any

_NOTE = "Pulse's own error: "
_ALIKE = 0.7
"""Minimum difflib similarity of a name that is suggested for an unknown one ..."""
_COMPARED = 200
"""... and how many of its characters are compared."""


def meant(name: str, names: Iterable[str], otherwise: str | None = None) -> str | None:
    """Fix for an unknown name: the one of `names` that was probably meant, else `otherwise`."""
    near = difflib.get_close_matches(name[:_COMPARED], list(names), 1, _ALIKE)
    return f"Did you mean {near[0]}?" if near else otherwise


_OF_GRPC = re.compile(r'^\s*details = "(.*)"$', re.MULTILINE)
_OF_WORKER = re.compile(r"\ATraceback \(most recent call last\):\n(?:[ \t].*\n|\n)+(\S.*)")
_WORKER = "An exception was thrown from the Python worker"


def first_line(error: BaseException) -> str:
    """The message of an error of a client library, without what the library adds."""
    message = (
        error.args[0].str() if hasattr(next(iter(error.args), None), "str") else str(error)
    )  # librdkafka's
    if message.startswith("<_") and (details := _OF_GRPC.search(message)):
        message = details[1]
    if message.lstrip().startswith(_WORKER):  # Spark's, with the traceback of a task
        _, mark, last = message.rpartition("Traceback (most recent call last):")
        if raised := _OF_WORKER.match(mark + last):
            message = raised[1]
    return message.strip().partition("\n")[0].rstrip(".") or type(error).__name__


def some_of(names: Collection[str]) -> str:
    """The first three of possibly many names, and how many more there are, for an error."""
    more = len(names) - 3
    return ", ".join(list(names)[:3]) + (f", and {more:,} more" if more > 0 else "")


def printable(text: str, besides: str = "") -> str:
    """Untrusted text without control characters, such as NUL: fit for a record and a terminal."""
    return "".join(c if c.isprintable() or c in besides else "\N{REPLACEMENT CHARACTER}" for c in text)


class PulseError(Exception):
    """Base class of the errors that Pulse raises deliberately.

    `where` names the objects concerned (tenant, dataset, batch, offset ...); `fix` is the next step.
    """

    def __init__(self, message: str, *, fix: str | None = None, **where: object) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.where = {key: str(value) for key, value in where.items()}

    def __str__(self) -> str:
        place = f" [{', '.join(f'{k}={v}' for k, v in self.where.items())}]" if self.where else ""
        ends = "" if f"{self.message}{place}".endswith(("?", ".", "!")) else "."
        return f"{self.message}{place}" + (f"{ends} {self.fix}" if self.fix else "")

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (Spark tasks, Dagster runs): keyword arguments must survive.
        return _rebuild, (type(self), self.message, self.fix, self.where)

    def as_note(self) -> str:
        """The error as a line in a traceback of another process, from which `from_notes` makes it again."""
        content = {"kind": type(self).__name__, "message": self.message, "fix": self.fix, "where": self.where}
        return f"{_NOTE}{json.dumps(content)}"


def from_notes(traceback: str) -> "PulseError | None":
    """The error of this package that a traceback ends with, if its process left a note (`as_note`)."""
    for line in traceback.splitlines():
        if line.startswith(_NOTE):
            content = json.loads(line.removeprefix(_NOTE))
            return _rebuild(globals()[content["kind"]], content["message"], content["fix"], content["where"])  # type: ignore[no-any-return]
    return None


def _rebuild(cls: type[PulseError], message: str, fix: str | None, where: dict[str, str]) -> Any:
    return cls(message, fix=fix, **where)


class UserError(PulseError):
    pass


class AlreadyExists(UserError):  # noqa: N818 - reads as the fact it states
    pass


class NotFound(UserError):  # noqa: N818
    pass


class Conflict(UserError):  # noqa: N818
    pass


class Incompatible(Conflict):
    """A schema version that a dataset cannot follow; `incompatibilities` says why (see `compatibility`)."""

    def __init__(
        self,
        message: str,
        *,
        fix: str | None = None,
        incompatibilities: Iterable[object] = (),
        **where: object,
    ) -> None:
        super().__init__(message, fix=fix, **where)
        self.incompatibilities = tuple(incompatibilities)

    def __reduce__(self) -> tuple[Any, ...]:
        return *super().__reduce__(), {"incompatibilities": self.incompatibilities}


class Forbidden(UserError):  # noqa: N818
    pass


class QuotaExceeded(UserError):  # noqa: N818
    pass


class Transient(PulseError):  # noqa: N818
    pass


class Terminal(PulseError):  # noqa: N818
    pass


class FileGone(Terminal):
    pass


class Fenced(PulseError):  # noqa: N818
    pass
