"""Service logs, bounded in size while services write them."""

import os
from contextlib import suppress
from pathlib import Path

MAX_BYTES = 32 * 1024 * 1024


def bound(folder: Path, most: int = MAX_BYTES) -> None:
    """Truncate every log longer than `most` bytes; its end is kept as `<name>.log.1`.

    Services hold their logs open and only append, so none needs a signal. Lines written at this very moment
    may be lost.
    """
    for log in folder.glob("*.log"):
        with suppress(OSError):  # a full disk must not prevent it from being emptied
            if log.stat().st_size > most:
                with suppress(OSError):
                    _keep_end(log, most)
                os.truncate(log, 0)


def _keep_end(log: Path, most: int) -> None:
    fresh = log.with_suffix(".log.part")
    with log.open("rb") as full, fresh.open("wb") as end:
        full.seek(-most, os.SEEK_END)
        end.write(full.read(most))
    fresh.replace(log.with_suffix(".log.1"))
