"""Avro's codecs within limits, for all that pyiceberg reads in this process.

pyiceberg unpacks a block whatever it becomes, and lets each library's own error through: of bzip2 an OSError,
which here means that the object store failed. It lacks snappy unless one more package is installed.
"""

from dataclasses import dataclass
from typing import cast

from pyiceberg.avro import file
from pyiceberg.avro.codecs import KNOWN_CODECS
from pyiceberg.avro.codecs.codec import Codec
from typing_extensions import override

from pulse_resources.avro_files import CODECS, unpack


@dataclass
class CheckedBlock(file.Block):  # type: ignore[type-arg]
    """Block of rows, whose number is not negative: pyiceberg takes such a block for the end of the file."""

    def __post_init__(self) -> None:
        if self.block_records < 0:
            raise ValueError(f"a block has {self.block_records} rows")


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
    for name in CODECS:
        if codec := codecs[name]:
            codecs[name] = _checked(name, codec)
    file.Block = CheckedBlock  # type: ignore[misc]
