"""Structured logs: one JSON object per line on standard output, never a payload or a key."""

import logging
import sys
from datetime import UTC, datetime

import orjson
from typing_extensions import override


class _Lines(logging.Formatter):
    @override
    def format(self, record: logging.LogRecord) -> str:
        entry = {"level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return orjson.dumps({"time": datetime.now(UTC)} | entry).decode()


def configure() -> None:
    """Send everything that is logged in this process to standard output, as JSON."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Lines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def access(entry: dict[str, object]) -> None:
    """The line of one request; straight to the output, since `logging` costs more than a small request."""
    line = {"time": datetime.now(UTC), "logger": "pulse.access"} | entry
    sys.stdout.buffer.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
    sys.stdout.buffer.flush()
