"""Keys of changes, decoded from messages of logical replication, as a decoder of whole rows finds them."""

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from pulse_pipelines.pipes.postgres import pgoutput
from pulse_pipelines.pipes.postgres.pgoutput import decoded
from pulse_resources.errors import Terminal

Row = Sequence[str | None]
COLUMNS = ("a", "b", "c", "d")
KEYS = st.permutations(COLUMNS).flatmap(
    lambda names: st.integers(1, len(names)).map(lambda count: tuple(names[:count]))
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
ROWS = st.tuples(*[TEXTS] * len(COLUMNS))


def relation(number: int, columns: Sequence[str]) -> bytes:
    described = b"".join(b"\1" + name.encode() + b"\0" + bytes(8) for name in columns)
    return (
        b"R" + struct.pack(">I", number) + b"public\0planes\0d" + struct.pack(">H", len(columns)) + described
    )


def row(kind: str, values: Row) -> bytes:
    """Of a None the value is not told: it is null, or stored apart and unchanged."""
    fields = [b"nu"[n % 2 : n % 2 + 1] if value is None else _text(value) for n, value in enumerate(values)]
    return kind.encode() + struct.pack(">H", len(values)) + b"".join(fields)


def _text(value: str) -> bytes:
    return b"t" + struct.pack(">I", len(value.encode())) + value.encode()


def change(kind: str, number: int, *rows: bytes) -> bytes:
    return kind.encode() + struct.pack(">I", number) + b"".join(rows)


@given(
    key=KEYS, changes=st.lists(st.tuples(st.sampled_from("INUKOD"), ROWS, ROWS, st.booleans()), max_size=20)
)
def test_the_keys_are_those_of_whole_rows(
    key: tuple[str, ...], changes: list[tuple[str, Row, Row, bool]]
) -> None:
    def only(values: Row, *, sent: bool = True) -> list[str | None]:
        """A row of which the log has the key, and other values or none."""
        return [value if sent or name in key else None for name, value in zip(COLUMNS, values, strict=True)]

    def key_of(values: Row) -> tuple[str | None, ...]:
        return tuple(values[COLUMNS.index(name)] for name in key)

    messages, expected = [relation(7, COLUMNS), relation(8, ("x", *key))], set()
    for kind, old, new, sent in changes:
        before, after = row("O", old), row("N", only(new, sent=sent))
        if kind in "KD":
            before = row("K", only(old, sent=False))
        if kind in "IN":
            messages.append(change("I" if kind == "I" else "U", 7, after))
            expected.add(key_of(new))
        elif kind == "D":
            messages.append(change("D", 7, before))
            expected.add(key_of(old))
        else:
            messages.append(change("U", 7, before, after))
            expected |= {key_of(old), key_of(new)}
        if kind == "U":  # of a table that a person added to the publication
            messages.append(change("I", 8, row("N", [None, *key])))
            messages.append(b"T" + struct.pack(">IBI", 1, 0, 8))
    log_changes = decoded(messages, key, 7)
    assert (log_changes.keys, log_changes.whole, log_changes.messages) == (expected, False, len(messages))


def test_a_part_of_a_key_that_is_stored_apart_is_that_of_the_old_row() -> None:
    old, new = row("K", ["a", None, "c"]), row("N", ["A", None, "c"])
    apart = new.replace(b"t" + struct.pack(">I", 1) + b"c", b"u")
    messages = [relation(7, COLUMNS[:3]), change("U", 7, old, apart)]
    assert decoded(messages, ("c", "a"), 7).keys == {("c", "a"), ("c", "A")}
    with pytest.raises(Terminal, match="without the key"):
        decoded([messages[0], change("U", 7, apart)], ("c", "a"), 7)


def test_a_commit_tells_where_it_ends_and_when() -> None:
    commit = b"C\0" + struct.pack(">QQq", 1, 0x1_0000_00FF, 86_400_000_000)
    log_changes = decoded([commit], ("a",), 7)
    assert (log_changes.end, str(log_changes.committed_at)) == ("1/FF", "2000-01-02 00:00:00+00:00")


def test_a_change_without_its_key_is_an_error_and_a_truncation_is_all_rows() -> None:
    with pytest.raises(Terminal, match="without the key"):
        decoded([relation(7, COLUMNS), change("U", 7, row("N", ["a", None, "c", "d"]))], ("b",), 7)
    truncated = b"T" + struct.pack(">IBII", 2, 0, 8, 7)
    log_changes = decoded([relation(7, COLUMNS), change("I", 7, row("N", COLUMNS)), truncated], ("b",), 7)
    assert (log_changes.whole, log_changes.keys) == (True, set())


@pytest.mark.parametrize(("bound", "most"), [("MOST_KEYS", 9), ("MOST_KEY_CHARACTERS", 36)])
def test_keys_take_bounded_memory(bound: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known already counts once; beyond, all rows are read, and the log is read on to its end."""
    monkeypatch.setattr(pgoutput, bound, most)
    changes = [change("I", 7, row("N", (f"N{n % 9:03}", "b", "c", "d"))) for n in range(100)]
    log_changes = decoded([relation(7, COLUMNS), *changes], ("a",), 7)
    assert (len(log_changes.keys), log_changes.whole) == (9, False)
    log_changes = decoded(
        [relation(7, COLUMNS), *changes, change("D", 7, row("K", ("more",))), *changes], ("a",), 7
    )
    assert (len(log_changes.keys), log_changes.whole, log_changes.messages) == (0, True, 202)
