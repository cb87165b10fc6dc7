"""Writer: writes at random into the tables of a source, and exports one of them as files."""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

TABLE = "CREATE TABLE {} (fleet int, tail text, seats int, notes text, PRIMARY KEY (fleet, tail))"
EXPORTS = 0.05
"""Share of the transactions after which files are written."""
LARGE = "".join(str(n * n) for n in range(3_000))
"""A value that is stored out of line: the log leaves it out where it has not changed."""
DML = (
    *(("INSERT INTO {t} VALUES (%(a)s, %(b)s, %(c)s, %(d)s) ON CONFLICT DO NOTHING",) * 4),
    *(("UPDATE {t} SET seats = seats + 1 WHERE fleet = %(a)s AND tail <= %(b)s",) * 3),
    "UPDATE {t} SET notes = %(d)s WHERE fleet = %(a)s AND tail = %(b)s",
    "UPDATE {t} SET fleet = 9 - fleet WHERE tail = %(b)s",
    *(("DELETE FROM {t} WHERE fleet = %(a)s AND tail = %(b)s",) * 2),
)
Source = psycopg.Connection[Any]


class Writer:
    """Writes at random into the tables of a source, in transactions of which some are rolled back."""

    def __init__(
        self, address: str, seed: int, tables: Sequence[str], exported: Callable[[Source], None]
    ) -> None:
        """A writer of tables; `exported` is called with the source now and then."""
        self._draw, self._address, self._tables = random.Random(seed), address, tables
        self._exported = exported
        self.still = threading.Lock()
        """Whoever holds it sees the source without its writes."""
        self.deleted_ids: dict[str, set[str]] = defaultdict(set)
        """Ids that were not there at some moment after they had been, by table."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, name="writer", daemon=True)
        self.count = 0

    @contextmanager
    def writing(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def _write(self) -> None:
        with psycopg.connect(self._address, autocommit=True) as source:
            while not self._stop.is_set():
                with self.still:
                    self.write(source)
                    if self._draw.random() < EXPORTS:
                        self._exported(source)
                time.sleep(self._draw.uniform(0, 0.05))

    def write(self, source: Source) -> None:
        """One transaction."""
        draw, table = self._draw, self._draw.choice(self._tables)
        before = _ids(source, table)
        with source.transaction(force_rollback=draw.random() < 0.1):
            for _ in range(draw.randrange(1, 6)):
                values = {
                    "a": draw.randrange(1, 4),
                    "b": f"N{draw.randrange(20)}",
                    "c": draw.randrange(9),
                    "d": draw.choice((None, "x", LARGE)),
                }
                # A key that exists already: the transaction continues without this statement.
                try:
                    with source.transaction():
                        source.execute(draw.choice(DML).format(t=table), values)
                except psycopg.errors.UniqueViolation:
                    continue
                self.count += 1
        if draw.random() < 0.003:  # an empty table would be held for a person
            source.execute(f"TRUNCATE {table}; INSERT INTO {table} VALUES (1, 'N1')")
        self.deleted_ids[table] |= before - _ids(source, table)


def _ids(source: Source, table: str) -> set[str]:
    return {entity_id(*row) for row in source.execute(f"SELECT fleet, tail FROM {table}")}


def entity_id(fleet: int, tail: str) -> str:
    """The `_id` of a row."""
    return f'["{fleet}", "{tail}"]'
