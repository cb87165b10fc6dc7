"""Structured logs: one JSON object per line on standard output, without payloads or keys."""

import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime

import orjson
from typing_extensions import override

ACCESS = "pulse.access"
"""Logger of requests: a level above INFO turns them off."""
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Id of the request that the current task answers; log lines of the task have it."""
_ACCESS = logging.getLogger(ACCESS)


class Lines(logging.Formatter):
    """A JSON object per record."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        entry = {"level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        if (request_id := REQUEST_ID.get()) is not None:
            entry["request_id"] = request_id
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return orjson.dumps({"time": datetime.now(UTC)} | entry).decode()


def configure() -> None:
    """Send all logs of this process to standard output, as JSON."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(Lines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def access(entry: dict[str, object]) -> None:
    """Write the access log line of a request, bypassing `logging`, which costs more than a small request."""
    if _ACCESS.level > logging.INFO:
        return
    line = {"time": datetime.now(UTC), "logger": ACCESS} | entry
    sys.stdout.buffer.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
    sys.stdout.buffer.flush()
