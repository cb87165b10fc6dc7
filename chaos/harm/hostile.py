"""Files whose few bytes become many in the memory of who parses them."""

import struct
import zlib

import zstandard

_ZSTANDARD = 6
"""Parquet's number of the codec."""
_I64, _BINARY, _LIST, _STRUCT, _I32 = 6, 8, 9, 12, 5
MAGIC = b"PAR1"


def parquet(groups: int = 20, columns: int = 100_000) -> bytes:
    """A Parquet file without rows, whose footer names so many column chunks in each of its row groups.

    Each has three bytes, and some seven hundred once it is parsed.
    """
    schema = [
        _fields((4, _BINARY, _text(b"root")), (5, _I32, _number(1))),
        _fields((1, _I32, _number(1)), (3, _I32, _number(1)), (4, _BINARY, _text(b"tail"))),
    ]
    chunk = _fields((2, _I64, _number(0)))
    group = _fields((1, _LIST, _list([chunk] * columns)), (2, _I64, _number(0)), (3, _I64, _number(0)))
    footer = _fields(
        (1, _I32, _number(1)),
        (2, _LIST, _list(schema)),
        (3, _I64, _number(0)),
        (4, _LIST, _list([group] * groups)),
    )
    return MAGIC + footer + struct.pack("<I", len(footer)) + MAGIC


def page(unpacked: int) -> bytes:
    """A Parquet file of one column, `id`, whose only page is small, and unpacks to so many zeros."""
    packer, piece, rows = zstandard.ZstdCompressor().compressobj(), bytes(2**20), unpacked // 8
    pieces = [
        packer.compress(piece[: min(len(piece), unpacked - at)]) for at in range(0, unpacked, len(piece))
    ]
    packed = b"".join([*pieces, packer.flush()])
    values = _fields(
        (1, _I32, _number(rows)), (2, _I32, _number(0)), (3, _I32, _number(3)), (4, _I32, _number(3))
    )
    sizes = (2, _I32, _number(unpacked)), (3, _I32, _number(len(packed)))
    content = _fields((1, _I32, _number(0)), *sizes, (5, _STRUCT, values)) + packed
    size = _number(len(content))
    schema = [
        _fields((4, _BINARY, _text(b"root")), (5, _I32, _number(1))),
        _fields(
            (1, _I32, _number(2)), (3, _I32, _number(0)), (4, _BINARY, _text(b"id")), (9, _I32, _number(1))
        ),
    ]
    column = _fields(
        (1, _I32, _number(2)),
        (2, _LIST, bytes([0x10 | _I32]) + _number(0)),
        (3, _LIST, bytes([0x10 | _BINARY]) + _text(b"id")),
        (4, _I32, _number(_ZSTANDARD)),
        (5, _I64, _number(rows)),
        (6, _I64, _number(unpacked)),
        (7, _I64, size),
        (9, _I64, _number(len(MAGIC))),
    )
    chunk = _fields((2, _I64, _number(len(MAGIC))), (3, _STRUCT, column))
    group = _fields((1, _LIST, _list([chunk])), (2, _I64, size), (3, _I64, _number(rows)))
    footer = _fields(
        (1, _I32, _number(1)), (2, _LIST, _list(schema)), (3, _I64, _number(rows)), (4, _LIST, _list([group]))
    )
    return MAGIC + content + footer + struct.pack("<I", len(footer)) + MAGIC


def avro(like: bytes, unpacked: int) -> bytes:
    """An Avro file of one block that is deflated, and unpacks to so many zeros.

    Args:
        like: a file with the same header, of which the last 16 bytes are the mark at the header's end.
    """
    mark = like[-16:]
    packer, piece = zlib.compressobj(1, zlib.DEFLATED, -15), bytes(2**20)
    block = b"".join([*(packer.compress(piece) for _ in range(unpacked // len(piece))), packer.flush()])
    return b"".join([like[: like.index(mark)], mark, _number(1), _number(len(block)), block, mark])


def repeated(like: bytes, times: int) -> bytes:
    """An Avro file of one block that has each row of another file, so many times.

    Args:
        like: a file of one block that is deflated.
    """
    mark = like[-16:]
    head, block = like[: like.index(mark)], like[like.index(mark) + len(mark) : -len(mark)]
    rows, at = _read(block, 0)
    _, at = _read(block, at)
    row, packer = zlib.decompress(block[at:], -15), zlib.compressobj(1, zlib.DEFLATED, -15)
    packed = b"".join([*(packer.compress(row) for _ in range(times)), packer.flush()])
    return b"".join([head, mark, _number(rows * times), _number(len(packed)), packed, mark])


def _read(content: bytes, at: int) -> tuple[int, int]:
    """An integer of Avro that is not negative, and where it ends."""
    value = shift = 0
    while content[at] > 0x7F:
        value |= (content[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return (value | content[at] << shift) >> 1, at + 1


def _fields(*fields: tuple[int, int, bytes]) -> bytes:
    """A struct, as Thrift's compact protocol has it: of ids, kinds and values."""
    written, last = bytearray(), 0
    for number, kind, value in fields:
        written += bytes([(number - last) << 4 | kind]) + value
        last = number
    return bytes(written) + b"\0"


def _list(structs: list[bytes]) -> bytes:
    return bytes([0xF0 | _STRUCT]) + _size(len(structs)) + b"".join(structs)


def _text(content: bytes) -> bytes:
    return _size(len(content)) + content


def _number(value: int) -> bytes:
    return _size(value << 1)


def _size(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])
