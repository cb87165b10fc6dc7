"""The workers of a run share the rewriting of assertions.

pytest rewrites the assertions of a module when it is first imported, and keeps the result beside it. In a
fresh clone all workers import all modules at once, so that each would rewrite all of them.
"""

import os
import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

FOLDER = Path(__file__).parent.parent


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None or sys.dont_write_bytecode:
        return
    number, workers = int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for file in sorted(FOLDER.rglob("*.py"))[number::workers]:
        write_rewritten(file, config)


def write_rewritten(file: Path, config: pytest.Config) -> None:
    """Rewrite a module as its import would, unless that was done."""
    folder = rewrite.get_cache_dir(file)
    compiled = folder / (file.stem + rewrite.PYC_TAIL)
    if rewrite._read_pyc(file, compiled) is None:
        rewrite.try_makedirs(folder)
        source_hash, code = rewrite._rewrite_test(file, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, compiled)
