"""Blocks of Avro are unpacked within limits, and whatever is wrong with them is one kind of error."""

import bz2
import io
import json
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestFile, read_manifest_list
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from pulse_pipelines.lake import table_state
from pulse_resources import avro_files

SCHEMA = AvroSchemaConversion().iceberg_to_avro(MANIFEST_LIST_FILE_SCHEMAS[2], schema_name="manifest_file")
SYNC = bytes(range(16))
MIB = 2**20


def number(value: int) -> bytes:
    value, encoded = (value << 1) ^ (value >> 63), bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def text(content: bytes) -> bytes:
    return number(len(content)) + content


def avro(codec: str, block: bytes, rows: int = 1, schema: object = SCHEMA) -> bytes:
    head = {b"avro.schema": json.dumps(schema).encode(), b"avro.codec": codec.encode()}
    described = b"".join(text(name) + text(value) for name, value in head.items())
    return b"".join(
        [b"Obj\x01", number(len(head)), described, number(0), SYNC, number(rows), text(block), SYNC]
    )


class Input:
    """A file of pyiceberg's that is in memory."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def open(self) -> io.BytesIO:
        return io.BytesIO(self._content)


def read(content: bytes) -> list[ManifestFile]:
    return list(read_manifest_list(Input(content)))  # type: ignore[arg-type]


def deflate(content: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(content) + packer.flush()


def snappy(content: bytes) -> bytes:
    packed: bytes = pa.compress(content, "snappy", asbytes=True)
    return packed + zlib.crc32(content).to_bytes(4, "big")


PACK: dict[str, Callable[[bytes], bytes]] = {
    "bzip2": bz2.compress,
    "deflate": deflate,
    "snappy": snappy,
    "zstandard": zstandard.compress,
}


@pytest.mark.parametrize("codec", PACK)
def test_blocks_compressed_by_engines_are_decompressed(codec: str) -> None:
    row = b"".join([text(b"s3://pulse/x.avro"), bytes(50)])
    (manifest,) = read(avro(codec, PACK[codec](row)))
    assert manifest.manifest_path == "s3://pulse/x.avro"


@pytest.mark.parametrize("codec", PACK)
def test_a_block_that_becomes_too_much_is_not_unpacked(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = avro(codec, PACK[codec](bytes(32 * MIB)))
    monkeypatch.setattr(avro_files, "LARGEST", MIB)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=rf"a block of {codec} becomes"):
            read(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12 * MIB


def with_field(kind: Any) -> dict[str, Any]:
    return SCHEMA | {"fields": [{"name": "more", "type": kind, "field-id": 9_999}, *SCHEMA["fields"]]}


def lists(depth: int) -> Any:
    return {"type": "array", "element-id": 9_000 + depth, "items": lists(depth - 1)} if depth else "long"


HOSTILE = {
    **{f"damaged {codec}": avro(codec, b"\xff" * 9) for codec in PACK},
    **{f"cut {codec}": avro(codec, pack(bytes(range(99)))[:-9]) for codec, pack in PACK.items()},
    "a length of snappy that lies": avro("snappy", b"\xff\xff\xff\x0f" + bytes(8)),
    "a checksum of snappy that lies": avro("snappy", snappy(b"abc")[:-1] + b"x"),
    "an unknown codec": avro("xz", b"x"),
    "a negative number of rows": avro("null", b"", rows=-5),
    "rows without bytes": avro("null", b"", rows=2**60),
    "no rows' schema": avro("null", b"", schema={"type": "record", "name": "x", "fields": []}, rows=2**60),
    "a schema that names itself": avro("null", b"", schema=with_field("manifest_file")),
    "a deep schema": avro("null", b"", schema=with_field(lists(200))),
    "many elements without bytes": avro(
        "null", number(2**40), schema=with_field({"type": "array", "items": "null", "element-id": 9_000})
    ),
    "a text that is none": avro("null", text(b"\xff\xfe")),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_avro_file_is_an_unreadable_table(case: str) -> None:
    """Not one that ends the process which reads the tenant's other tables, or an object store that failed."""
    with pytest.raises(table_state.UNREADABLE) as raised:
        read(HOSTILE[case])
    assert not isinstance(raised.value, OSError)
    assert str(raised.value)


ROW = b"".join([text(b"s3://pulse/x.avro"), number(10), bytes(13)])
"""A manifest without partitions and key, by the schema."""


@pytest.mark.parametrize("codec", ["null", *PACK])
def test_rows_are_counted(codec: str) -> None:
    pack = PACK.get(codec, bytes)
    assert avro_files.count_rows(avro(codec, pack(2 * ROW), rows=2)) == 2
    assert avro_files.count_rows(avro(codec, pack(b""), rows=0)) == 0


def test_values_of_all_types_are_skipped() -> None:
    kinds: list[Any] = [
        "null",
        "boolean",
        "int",
        "float",
        "double",
        "bytes",
        {"type": "map", "values": "long"},
    ]
    kinds += [{"type": "fixed", "name": "f", "size": 3}, {"type": "enum", "name": "e", "symbols": ["a"]}]
    kinds += ["f", ["e"], {"type": {"type": "string"}}]
    fields = [{"name": f"c{n}", "type": kind} for n, kind in enumerate(kinds)]
    pairs = number(-1) + number(2) + text(b"k")[:2] + number(4) + number(0)
    row = b"\1" + number(300) + bytes(12) + text(b"ab") + pairs + b"xyz" + number(0) + b"xyz" + bytes(2)
    row += text(b"t")
    schema = {"type": "record", "name": "r", "fields": fields}
    assert avro_files.count_rows(avro("null", 3 * row, rows=3, schema=schema)) == 3


@pytest.mark.parametrize(
    "content",
    [
        *HOSTILE.values(),
        *(avro("deflate", deflate(ROW), rows=rows) for rows in (-1, 0, 2, 2**40)),
        avro("deflate", deflate(ROW[:-3])),
        avro("deflate", deflate(ROW))[:-1],
        avro("deflate", deflate(ROW)) + b"\2",
        avro("deflate", deflate(ROW))[:-16] + bytes(16),
        avro("null", b"", schema="nothing"),
        b"",
        b"Obj\x01",
    ],
)
def test_a_file_whose_rows_cannot_be_counted_is_damaged(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        avro_files.count_rows(content)


@pytest.mark.parametrize("codec", PACK)
def test_a_bomb_is_not_counted(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_files, "LARGEST", MIB)
    with pytest.raises(ValueError, match=rf"a block of {codec} becomes"):
        avro_files.count_rows(avro(codec, PACK[codec](bytes(8 * MIB))))
