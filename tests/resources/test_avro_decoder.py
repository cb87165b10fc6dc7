"""Damaged and forged Avro files are errors; pyiceberg's own decoder reads beyond them and dies."""

import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from pyiceberg.avro import file
from pyiceberg.avro.decoder import BinaryDecoder, StreamingBinaryDecoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    ManifestEntry,
    ManifestFile,
)

from benchmarks.manifests import written
from pulse_resources import iceberg
from pulse_resources.iceberg.avro_decoder import CheckedDecoder

LONGS = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.one_of(st.integers(-64, 63), st.integers(-8192, 8191), LONGS)


PRIMITIVES = ("boolean", "float", "double", "bytes", "utf8")


class Sink(bytearray):
    def write(self, content: bytes) -> int:
        self += content
        return len(content)


def encoded(*numbers: int) -> bytes:
    sink = Sink()
    for number in numbers:
        BinaryEncoder(sink).write_int(number)
    return bytes(sink)


@given(st.lists(NUMBERS))
def test_integers_are_those_of_the_specification(numbers: list[int]) -> None:
    content = encoded(*numbers)
    assert CheckedDecoder(content).read_ints(len(numbers)) == tuple(numbers)
    reading, skipping = CheckedDecoder(content), CheckedDecoder(content)
    for number in numbers:
        assert reading.read_int() == number
        skipping.skip_int()
        assert reading.tell() == skipping.tell()
    assert reading.tell() == len(content)


@given(st.dictionaries(NUMBERS, st.binary(max_size=200)))
def test_bounds_are_those_that_were_written(bounds: dict[int, bytes]) -> None:
    content = b"".join(encoded(key, len(value)) + value for key, value in bounds.items())
    actual: dict[int, bytes] = {}
    decoder = CheckedDecoder(content)
    decoder.read_int_bytes_dict(len(bounds), actual)
    assert (actual, decoder.tell()) == (bounds, len(content))


def test_other_primitives() -> None:
    text = "häß".encode()
    content = b"\x01" + struct.pack("<f", 1.5) + struct.pack("<d", -2.25) + encoded(len(text)) + text
    decoder = CheckedDecoder(content)
    assert (decoder.read_boolean(), decoder.read_float(), decoder.read_double()) == (True, 1.5, -2.25)
    assert decoder.read_utf8() == "häß"
    assert decoder.tell() == len(content)


READS = {
    "a length beyond the end": (encoded(1000) + b"x", CheckedDecoder.read_bytes),
    "a negative length": (encoded(-5) + b"xxxxx", CheckedDecoder.read_bytes),
    "a negative skip": (encoded(-5) + b"xxxxx", CheckedDecoder.skip_bytes),
    "an integer without an end": (b"\xff\xff", CheckedDecoder.read_int),
    "an integer of eleven bytes": (b"\xff" * 10 + b"\x01", CheckedDecoder.read_int),
    "a bound beyond the end": (b"\x02\x7ea", lambda decoder: decoder.read_int_bytes_dict(1, {})),
    "a bound of a negative length": (b"\x02\x03a", lambda decoder: decoder.read_int_bytes_dict(1, {})),
    "half a number": (b"abc", CheckedDecoder.read_double),
}


@pytest.mark.parametrize("case", READS)
def test_a_value_beyond_the_content_is_an_error(case: str) -> None:
    content, read = READS[case]
    with pytest.raises(ValueError, match=r"byte|there are"):
        read(CheckedDecoder(content))


def test_only_the_end_of_a_file_is_its_end() -> None:
    """By an EOFError pyiceberg takes a file for read: one that is cut off would lose what was behind."""
    with pytest.raises(EOFError):
        CheckedDecoder(b"").read_int()


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> ManifestFile:
    return written(tmp_path_factory.mktemp("avro") / "manifest.avro", 3, 9)


def entries(manifest: ManifestFile) -> list[ManifestEntry]:
    return manifest.fetch_manifest_entry(PyArrowFileIO(), discard_deleted=False)


def test_a_manifest_reads_as_with_the_decoder_of_pyiceberg(
    manifest: ManifestFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert file.new_decoder is CheckedDecoder, f"{iceberg.__name__} makes it the one that is used"
    checked = entries(manifest)
    monkeypatch.setattr(file, "new_decoder", StreamingBinaryDecoder)
    assert [entry._data for entry in checked] == [entry._data for entry in entries(manifest)]
    assert len(checked) == 3


def test_counts_beyond_the_content_are_an_error() -> None:
    with pytest.raises(EOFError):
        CheckedDecoder(b"\x02").read_ints(2**60)
    with pytest.raises(EOFError):
        CheckedDecoder(b"\x02\x02a").read_int_bytes_dict(2**60, {})


def test_a_truncated_manifest_is_an_error(manifest: ManifestFile, tmp_path: Path) -> None:
    whole = Path(manifest.manifest_path).read_bytes()
    begins = whole.index(whole[-16:]) + 16  # of the one block: behind the header's sync marker
    for length in (*range(begins + 1, begins + 5), *range(begins + 5, len(whole), 61), len(whole) - 1):
        path = tmp_path / f"{length}.avro"
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="byte"):
            entries(ManifestFile.from_args(manifest_path=str(path), manifest_length=length))


def test_a_damaged_manifest_ends_no_process(manifest: ManifestFile, tmp_path: Path) -> None:
    whole = Path(manifest.manifest_path).read_bytes()
    damaged = [whole[:length] for length in range(0, len(whole), 97)]
    damaged += [whole[:at] + bytes([whole[at] ^ 0x81]) + whole[at + 1 :] for at in range(0, len(whole), 61)]
    for number, content in enumerate(damaged):
        path = tmp_path / f"{number}.avro"
        path.write_bytes(content)
        with suppress(Exception):  # whatever it is, this process lives to tell
            entries(ManifestFile.from_args(manifest_path=str(path), manifest_length=len(content)))


def test_the_decoder_has_all_methods_that_pyiceberg_calls() -> None:
    assert not getattr(CheckedDecoder, "__abstractmethods__", None)
    composed = {"read_boolean", "read_utf8", *(f"skip_{name}" for name in PRIMITIVES)}
    every = {name for name in vars(BinaryDecoder) if not name.startswith("_")}
    assert every - set(vars(CheckedDecoder)) == composed
