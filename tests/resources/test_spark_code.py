"""The archive of Pulse's code: a Python that has never seen Pulse imports what tasks need from it alone."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from pulse_resources import spark_code

pytestmark = pytest.mark.long

IMPORTED = """
import sys
from pulse_pipelines.backfill import rebuild
from pulse_pipelines.ingest import drain, land
from pulse_pipelines.maintenance import rewrite
found = [m for name, m in sys.modules.items() if name.split(".")[0] in ("pulse_pipelines", "pulse_resources")]
print(len(found), {m.__loader__.archive for m in found}, {m.__cached__.rpartition(".")[2] for m in found})
"""


@pytest.fixture(scope="module")
def packed() -> bytes:
    return spark_code.archive()


def test_tasks_are_imported_from_the_archive_alone(tmp_path: Path, packed: bytes) -> None:
    archive = tmp_path / "pulse.zip"
    archive.write_bytes(packed)
    base = str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info[1]}")
    # Of this environment's packages, those that a file of paths adds are left out: Pulse is one of them.
    packages = sysconfig.get_paths()["purelib"]
    done = subprocess.run(
        [base, "-c", IMPORTED],
        env={"PYTHONPATH": f"{archive}:{packages}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    count, _, origins = done.stdout.partition(" ")
    assert int(count) > 50
    assert origins.strip() == f"{{'{archive}'}} {{'pyc'}}", "compiled, too"


def test_the_same_code_has_the_same_name(packed: bytes) -> None:
    assert spark_code.archive() == packed
    assert len(spark_code.digest()) == 16
