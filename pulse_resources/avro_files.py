"""Avro files that anyone may have written: blocks unpacked within limits, and rows counted by decoding them.

Without pyiceberg, whose import takes more memory than a process that only counts rows.
"""

import bz2
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import zstandard

LARGEST = 64 * 1024 * 1024
"""Bytes of a block once it is unpacked: 100,000 data files, of which engines write a thousand at most."""
CHECKSUM = 4
"""Bytes of the checksum that Avro adds to a block of snappy, big-endian."""
SYNC = 16
"""Bytes of the mark after the header and after each block."""
_MAGIC = b"Obj\x01"
_LONGEST = 10
"""Bytes of the longest integer."""
_FIXED_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
Unpack = Callable[[bytes], bytes]
_Skip = Callable[[bytes, int], int]
"""Where a value ends that begins at a place of the content, which may be beyond its end."""


def unpack(name: str, data: bytes) -> bytes:
    """Unpack a block.

    Args:
        name: Avro's name of the codec.

    Raises:
        ValueError: it is damaged, or becomes more than `LARGEST` bytes.
    """
    try:
        unpacked = _UNPACK[name](data)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError, pa.ArrowException) as error:
        raise ValueError(f"a block is not {name}: {error}") from error
    if len(unpacked) > LARGEST:
        raise ValueError(f"a block of {name} becomes more than {LARGEST:,} bytes")
    return unpacked


def count_rows(content: bytes) -> int:
    """Number of rows of a file, each of which is decoded: some 150 µs for an entry of a manifest.

    Raises:
        ValueError: the file is damaged, cut off, or a block becomes more than `LARGEST` bytes.
    """
    header, rows = _header(content), 0
    try:
        skip = _skipper(orjson.loads(header.pairs.get("avro.schema", b"")), {})
        for number, block in _blocks(content, header):
            _check_block(block, number, skip)
            rows += number
    except (RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its schema is not one of Avro: {error!r}") from error
    return rows


def count_declared_rows(content: bytes) -> tuple[int, int]:
    """The number of rows that a file's blocks declare, and the bytes of the blocks once they are unpacked.

    All blocks are unpacked up to the end of the file, and no row is decoded: some 6 µs for an entry of a
    manifest.

    Raises:
        ValueError: as `count_rows`, except for rows that cannot be decoded.
    """
    rows = size = 0
    for number, block in _blocks(content, _header(content)):
        rows, size = rows + number, size + len(block)
    return rows, size


def check_size(content: bytes, *, rows: int, unpacked: int) -> None:
    """Check that a file declares no more rows, and no more bytes once it is unpacked; no row is decoded.

    Raises:
        ValueError: it has more, or as `count_declared_rows`.
    """
    all_rows = size = 0
    for number, block in _blocks(content, _header(content)):
        all_rows, size = all_rows + number, size + len(block)
        if all_rows > rows:
            raise ValueError(f"it has more than {rows:,} entries")
        if size > unpacked:
            raise ValueError(f"it becomes more than {unpacked:,} bytes")


class _Header(NamedTuple):
    pairs: Mapping[str, bytes]
    codec: str
    mark: bytes
    end: int
    """Where the first block begins."""


def _header(content: bytes) -> _Header:
    if not content.startswith(_MAGIC):
        raise ValueError("it is not an Avro file")
    pairs: dict[str, bytes] = {}
    at = _pairs(content, len(_MAGIC), pairs)
    mark = _part(content, at, SYNC)
    codec = pairs.get("avro.codec", b"null").decode()
    if codec != "null" and codec not in _UNPACK:
        raise ValueError(f"it is packed by {codec[:100]!r}")
    return _Header(pairs, codec, mark, at + SYNC)


def _blocks(content: bytes, header: _Header) -> Iterator[tuple[int, bytes]]:
    """The number of rows that each block declares, and the block, unpacked."""
    at = header.end
    while at < len(content):
        number, at = _integer(content, at)
        size, at = _integer(content, at)
        block = _part(content, at, size)
        at += size
        if _part(content, at, SYNC) != header.mark:
            raise ValueError(f"the sync marker at byte {at} differs")
        at += SYNC
        block = block if header.codec == "null" else unpack(header.codec, block)
        if not 0 <= number <= len(block):
            raise ValueError(f"a block of {len(block):,} bytes has {number:,} rows")
        yield number, block


def _check_block(block: bytes, number: int, skip: _Skip) -> None:
    at = 0
    for _ in range(number):
        at = skip(block, at)
        if at > len(block):
            break
    if at != len(block):
        raise ValueError(f"the {number:,} rows of a block do not end where it does")


def _integer(content: bytes, at: int) -> tuple[int, int]:
    """An integer and where it ends."""
    number = shift = 0
    for byte in content[at : at + _LONGEST]:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + shift // 7
    raise ValueError(f"the integer at byte {at:,} has no end")


def _count(content: bytes, at: int) -> tuple[int, int]:
    """The number of items of a part of an array or map, and where it ends; 0: it was the last part."""
    number, at = _integer(content, at)
    if number < 0:  # then the part's size in bytes follows
        return -number, _integer(content, at)[1]
    return number, at


def _part(content: bytes, at: int, size: int) -> bytes:
    if size < 0 or at + size > len(content):
        raise ValueError(f"{size:,} bytes from byte {at:,} on, and there are {len(content):,}")
    return content[at : at + size]


def _pairs(content: bytes, at: int, pairs: dict[str, bytes]) -> int:
    """Read the header's pairs; returns where they end."""
    while True:
        number, at = _count(content, at)
        if number == 0:
            return at
        for _ in range(number):
            size, at = _integer(content, at)
            name = _part(content, at, size).decode()
            size, at = _integer(content, at + size)
            pairs[name] = _part(content, at, size)
            at += size


def _skipper(schema: Any, named: dict[str, _Skip]) -> _Skip:
    """How values of a schema are skipped.

    Args:
        named: types by the names that the schema has given them so far.
    """
    if isinstance(schema, list):
        choices = [_skipper(choice, named) for choice in schema]

        def skip_choice(content: bytes, at: int) -> int:
            number, at = _integer(content, at)
            if not 0 <= number < len(choices):
                raise ValueError(f"choice {number:,} of {len(choices):,}")
            return choices[number](content, at)

        return skip_choice
    if isinstance(schema, str):
        return (
            _of_size(_FIXED_SIZES[schema]) if schema in _FIXED_SIZES else _SKIPS.get(schema) or named[schema]
        )
    kind = schema["type"]
    if not isinstance(kind, str):
        return _skipper(kind, named)
    if kind == "record":
        return _record(schema, named)
    if kind in ("array", "map"):
        item = _skipper(schema["items" if kind == "array" else "values"], named)
        return _items(item if kind == "array" else lambda content, at: item(content, _text(content, at)))
    if kind in ("fixed", "enum"):
        skip = _of_size(int(schema["size"])) if kind == "fixed" else _number
        named[schema["name"]] = skip
        return skip
    return _skipper(kind, named)


def _record(schema: Mapping[str, Any], named: dict[str, _Skip]) -> _Skip:
    fields: list[_Skip] = []

    def skip_record(content: bytes, at: int) -> int:
        for skip in fields:
            at = skip(content, at)
        return at

    named[schema["name"]] = skip_record
    fields += [_skipper(field["type"], named) for field in schema["fields"]]
    return skip_record


def _items(skip: _Skip) -> _Skip:
    def skip_items(content: bytes, at: int) -> int:
        while True:
            number, at = _count(content, at)
            if number == 0:
                return at
            if number > len(content) - at:  # each has a byte, at least
                raise ValueError(f"{number:,} items from byte {at:,} on")
            for _ in range(number):
                at = skip(content, at)

    return skip_items


def _of_size(size: int) -> _Skip:
    if size < 0:
        raise ValueError(f"a type of {size} bytes")
    return lambda content, at: at + size


def _number(content: bytes, at: int) -> int:
    return _integer(content, at)[1]


def _text(content: bytes, at: int) -> int:
    size, at = _integer(content, at)
    if size < 0:
        raise ValueError(f"a text of {size} bytes")
    return at + size


_SKIPS: Mapping[str, _Skip] = {"int": _number, "long": _number, "bytes": _text, "string": _text}


def _stream(packed: "bz2.BZ2Decompressor | zlib._Decompress", data: bytes) -> bytes:
    unpacked = packed.decompress(data, LARGEST + 1)
    if not packed.eof and len(unpacked) <= LARGEST:
        raise EOFError("it is cut off")
    return unpacked


def _zstandard(data: bytes) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as packed:
        return packed.read(LARGEST + 1)


def _snappy(data: bytes) -> bytes:
    content, checksum = data[:-CHECKSUM], data[-CHECKSUM:]
    size = shift = 0
    for byte in content[:5]:  # the length, before the data
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > LARGEST:
        raise ValueError(f"a block of snappy becomes {size:,} bytes, and {LARGEST:,} are permitted")
    unpacked: bytes = pa.decompress(content, size, "snappy", asbytes=True)
    if zlib.crc32(unpacked).to_bytes(CHECKSUM, "big") != checksum:
        raise ValueError("the checksum of a block of snappy is another one")
    return unpacked


_UNPACK: Mapping[str, Unpack] = {
    "bzip2": lambda data: _stream(bz2.BZ2Decompressor(), data),
    "deflate": lambda data: _stream(zlib.decompressobj(-zlib.MAX_WBITS), data),
    "snappy": _snappy,
    "zstandard": _zstandard,
}
CODECS = frozenset(_UNPACK)
"""Avro's names of the codecs that are unpacked."""
