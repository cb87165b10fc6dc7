"""Limits of one query, from the settings."""

import os
from dataclasses import dataclass
from typing import Self

from pulse_pipelines.sql.confinement import Confinement
from pulse_resources.errors import Terminal
from pulse_resources.process import landlock
from pulse_resources.settings import load_settings

_CPU_SLACK = 2.0
"""Processor time per second of time limit and thread: a query within its time limit never gets near."""


@dataclass(frozen=True)
class Limits:
    """Limits of one query."""

    seconds: float
    memory_bytes: int
    threads: int
    rows: int
    bytes: int
    """Largest encoded result."""

    @classmethod
    def of_settings(cls) -> Self:
        sql = load_settings().sql
        threads = max(1, (os.cpu_count() or 1) // max(1, sql.parallelism // 2))
        return cls(sql.seconds, sql.memory_mb * 1024 * 1024, threads, sql.rows, sql.result_bytes)

    def confinement(self) -> Confinement:
        """Limits of the processes.

        Raises:
            Terminal: SQL is off, by a setting or because Landlock is missing.
        """
        settings = load_settings()
        is_enforced = landlock.version() >= landlock.CONNECTIONS_SINCE
        if not settings.sql.enabled:
            raise Terminal("SQL is switched off", fix="Set PULSE_SQL__ENABLED=true to switch it on")
        if not is_enforced and not settings.sql.without_landlock:
            raise Terminal(
                "SQL is off: the kernel's Landlock cannot restrict connections (Linux 6.7 or later can)",
                fix="Where you trust its callers, set PULSE_SQL__WITHOUT_LANDLOCK=true",
            )
        cpu = self.seconds * self.threads * _CPU_SLACK
        return Confinement.to_reach(
            settings.object_store, memory=self.memory_bytes, cpu=cpu, landlock=is_enforced
        )
