"""dbt builds tables of a tenant's own from datasets, by the project in docs/examples/dbt."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from support.catalog import Guest, make_guests
from support.docs import DOCS
from support.engines import rest
from support.http import Api
from support.ingest import event, ingest

from pulse_pipelines.query import duckdb_pool

INSTALL_S = 600.0
PROJECT = DOCS / "examples" / "dbt"


@pytest.mark.slow  # it installs dbt from a registry
def test_the_example_builds_and_follows_its_dataset(catalog: Api, tmp_path: Path) -> None:
    guest, _ = make_guests()
    run = Dbt(catalog, guest, tmp_path)
    run.build()
    assert counts(catalog, guest) == {"DE": 6}
    guest.owner.send(event("new-1"), event("new-2", country="FR"))
    ingest(guest.owner)
    run.build()
    assert counts(catalog, guest) == {"DE": 7, "FR": 1}


class Dbt:
    """dbt in an environment of its own, with a home that has DuckDB's extensions."""

    def __init__(self, catalog: Api, guest: Guest, folder: Path) -> None:
        lines = (DOCS / "open-lake.md").read_text().splitlines()
        install, self._build = (line[2:] for line in lines if line.startswith(("$ pip", "$ dbt")))
        self._folder = shutil.copytree(PROJECT, folder / "project")
        extensions = folder / ".duckdb" / "extensions" / f"v{duckdb.__version__}" / "linux_amd64"
        extensions.mkdir(parents=True)
        for name in duckdb_pool.EXTENSIONS:
            shutil.copy(duckdb_pool.extension(name), extensions)
        self._environment = {
            "PATH": f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "TENANT": guest.tenant.slug,
            "CATALOG": catalog.url,
            "KEY": guest.key.text,
        }
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True, timeout=INSTALL_S)
        self._run(install)

    def build(self) -> None:
        self._run(self._build)

    def _run(self, command: str) -> None:
        done = subprocess.run(
            ["/bin/sh", "-ec", command],
            cwd=self._folder,
            env=os.environ | self._environment,
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
        )
        assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]


def counts(catalog: Api, guest: Guest) -> dict[str, int]:
    rows = rest(catalog, guest).load_table("reports.by_country").scan().to_arrow().to_pylist()
    return {row["country"]: row["orders"] for row in rows}
