"""Avro's codecs within limits, for all that pyiceberg reads in this process.

pyiceberg unpacks a block whatever it becomes, and lets each library's own error through: of bzip2 an OSError,
which here means that the object store failed. It lacks snappy unless one more package is installed.
"""

import bz2
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
import zstandard
from pyiceberg.avro import file
from pyiceberg.avro.codecs import KNOWN_CODECS
from pyiceberg.avro.codecs.codec import Codec
from typing_extensions import override

LARGEST = 64 * 1024 * 1024
"""Bytes of a block once it is unpacked: 100,000 data files, of which engines write a thousand at most."""
CHECKSUM = 4
"""Bytes of the checksum that Avro adds to a block of snappy, big-endian."""
Unpack = Callable[[bytes], bytes]


@dataclass
class CheckedBlock(file.Block):  # type: ignore[type-arg]
    """Block of rows, whose number is not negative: pyiceberg takes such a block for the end of the file."""

    def __post_init__(self) -> None:
        if self.block_records < 0:
            raise ValueError(f"a block has {self.block_records} rows")


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


_UNPACK: dict[str, Unpack] = {
    "bzip2": lambda data: _stream(bz2.BZ2Decompressor(), data),
    "deflate": lambda data: _stream(zlib.decompressobj(-zlib.MAX_WBITS), data),
    "snappy": _snappy,
    "zstandard": _zstandard,
}


def _checked(name: str, codec: type[Codec]) -> type[Codec]:
    """The codec as it is, unpacking within limits."""

    class Checked(codec):  # type: ignore[misc, valid-type]
        @staticmethod
        @override
        def decompress(data: bytes) -> bytes:
            return unpack(name, data)

    return Checked


def install() -> None:
    """Make pyiceberg unpack with them."""
    codecs = cast(dict[str, type[Codec] | None], KNOWN_CODECS)
    for name in _UNPACK:
        if codec := codecs[name]:
            codecs[name] = _checked(name, codec)
    file.Block = CheckedBlock  # type: ignore[misc]
