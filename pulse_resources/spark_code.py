"""Pulse's own code for Spark executors: an archive for sessions whose Python lacks it or has another version.

Third-party packages must be installed there: those of `requirements.lock`.
"""

import hashlib
import io
import marshal
import re
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.util import MAGIC_NUMBER, find_spec, source_hash
from pathlib import Path

PACKAGES = ("pulse_pipelines", "pulse_resources")
_FILE_NAME = re.compile(r"pulse-[0-9a-f]{16}\.zip")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_UNCHECKED_HASH = (1).to_bytes(4, "little")
"""Flags of a compiled module that is not checked against its source."""


@cache
def digest() -> str:
    """Digest of the code and of the Python version that it is compiled for."""
    digest = hashlib.sha256(MAGIC_NUMBER)
    for name, source in _sources():
        digest.update(name.encode() + b"\0" + hashlib.sha256(source).digest())
    return digest.hexdigest()[:16]


def file_name() -> str:
    """Name of the archive, by its content."""
    return f"pulse-{digest()}.zip"


def is_file_of_another(name: str) -> bool:
    """Whether a file has the name of an archive of code that is not this process's."""
    return _FILE_NAME.fullmatch(name) is not None and name != file_name()


@cache
def archive() -> bytes:
    """Zip of the modules, compiled: otherwise each worker would compile them at import."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for name, source in _sources():
            for member, content in ((name, source), (f"{name}c", _compiled(name, source))):
                target.writestr(zipfile.ZipInfo(member, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _compiled(name: str, source: bytes) -> bytes:
    code = compile(source, name, "exec", dont_inherit=True)
    expected = source_hash(source)
    return MAGIC_NUMBER + _UNCHECKED_HASH + expected + marshal.dumps(code)


def _sources() -> Iterator[tuple[str, bytes]]:
    """Modules by their names in the archive."""
    for package in PACKAGES:
        spec = find_spec(package)
        folder = Path(str(spec and spec.origin)).parent
        for path in sorted(folder.rglob("*.py")):
            yield f"{package}/{path.relative_to(folder).as_posix()}", path.read_bytes()
