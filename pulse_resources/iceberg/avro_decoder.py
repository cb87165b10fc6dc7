"""Avro decoder that stays within the bytes it was given, for all that pyiceberg reads in this process.

pyiceberg's compiled decoder trusts the lengths in a file: a manifest that is cut off, damaged or forged makes
it read beyond the file's memory, and ends the process.
"""

from pyiceberg.avro import STRUCT_DOUBLE, STRUCT_FLOAT, file
from pyiceberg.avro.decoder import BinaryDecoder
from typing_extensions import override

LONGEST = 10
"""Bytes of the longest integer: Avro's have 64 bits, seven to a byte."""


class CheckedDecoder(BinaryDecoder):
    """Decodes primitives of Avro; every method raises ValueError for a value that is not within the content.

    Only an integer at the very end is an EOFError, by which pyiceberg finds the end of a file. Most of a
    manifest is numbers of one or two bytes: these are decoded in place, without a call each.
    """

    __slots__ = ("_at", "_content")

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @override
    def tell(self) -> int:
        return self._at

    @override
    def read(self, n: int) -> bytes:
        start = self._at
        self.skip(n)
        return self._content[start : self._at]

    @override
    def skip(self, n: int) -> None:
        end = self._at + n
        if not self._at <= end <= len(self._content):
            raise ValueError(f"{n} bytes from byte {self._at} on, and there are {len(self._content)}")
        self._at = end

    @override
    def read_int(self) -> int:
        content, at = self._content, self._at
        if at < len(content) and (byte := content[at]) < 0x80:
            self._at = at + 1
            return (byte >> 1) ^ -(byte & 1)
        if at == len(content):
            raise EOFError(f"there are {at} bytes")
        number = shift = 0
        for byte in content[at : at + LONGEST]:
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                self._at = at + shift // 7
                return (number >> 1) ^ -(number & 1)
        raise ValueError(f"the integer at byte {at} has no end, or more than {LONGEST} bytes")

    @override
    def skip_int(self) -> None:
        self.read_int()

    @override
    def read_ints(self, n: int) -> tuple[int, ...]:
        numbers = []
        content, at, last = self._content, self._at, len(self._content) - 1
        for _ in range(n):
            if at < last and (number := content[at]) < 0x80:
                at += 1
                numbers.append((number >> 1) ^ -(number & 1))
            elif at < last and (high := content[at + 1]) < 0x80:
                at += 2
                number = (number & 0x7F) | (high << 7)
                numbers.append((number >> 1) ^ -(number & 1))
            else:
                self._at = at
                numbers.append(self.read_int())
                at = self._at
        self._at = at
        return tuple(numbers)

    @override
    def read_int_bytes_dict(self, n: int, dest: dict[int, bytes]) -> None:
        content, at, end = self._content, self._at, len(self._content)
        for _ in range(n):
            if at + 1 < end and (key := content[at]) < 0x80 and (size := content[at + 1]) < 0x80:
                start = at + 2
                at = start + (size >> 1)
                if size & 1 or at > end:
                    raise ValueError(f"the value at byte {start} does not end within {end}")
                dest[(key >> 1) ^ -(key & 1)] = content[start:at]
            else:
                self._at = at
                number = self.read_int()
                dest[number] = self.read_bytes()
                at = self._at
        self._at = at

    @override
    def read_bytes(self) -> bytes:
        if self._at == len(self._content):  # a block's number of rows, and nothing behind it
            raise ValueError(f"there is nothing from byte {self._at} on")
        return self.read(self.read_int())

    @override
    def read_float(self) -> float:
        (number,) = STRUCT_FLOAT.unpack(self.read(4))
        return float(number)

    @override
    def read_double(self) -> float:
        (number,) = STRUCT_DOUBLE.unpack(self.read(8))
        return float(number)


def install() -> None:
    """Make pyiceberg decode with it."""
    file.new_decoder = CheckedDecoder  # type: ignore[assignment, attr-defined]
