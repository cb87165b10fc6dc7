"""docs/open-lake.md is executed, after what `pulse lake connect` prints."""

import json
import os
import re
import shutil
import subprocess
from typing import Any

import pytest
from support.catalog import Guest
from support.docs import DOCS
from support.engines import duck, rest
from support.http import Api

from chaos.waiting import PATIENCE_S

PAGE = (DOCS / "open-lake.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_sql_of_the_page_has_the_expected_answers(catalog: Api, guest: Guest) -> None:
    snapshots = rest(catalog, guest).load_table("events.orders").metadata.snapshots
    first = min(snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    block = blocks("sql")[0]
    text = block.replace("acme", guest.tenant.slug).replace("{snapshot}", str(first.snapshot_id))
    with duck(catalog, guest) as connection:
        answers = [connection.execute(query).fetchall() for query in text.strip().rstrip(";").split(";")]
    assert answers == [[("DE", 6)], [(3,)]]


def test_the_python_of_the_page_works(catalog: Api, guest: Guest, capsys: pytest.CaptureFixture[str]) -> None:
    known: dict[str, Any] = {"catalog": rest(catalog, guest)}
    exec(blocks("python")[0], known)  # noqa: S102
    assert "mine-1-0" in capsys.readouterr().out


def sh(block: str, catalog: Api, guest: Guest) -> subprocess.CompletedProcess[str]:
    """Run commands of the page, `curl` so that an error ends them."""
    curl = f'set -euo pipefail\ncurl() {{ {shutil.which("curl")} --fail-with-body -sS "$@"; }}\n'
    return subprocess.run(
        [str(shutil.which("bash")), "-c", curl + block],
        env=os.environ | {"CATALOG": catalog.url, "KEY": guest.key.text},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@pytest.mark.skipif(not shutil.which("curl"), reason="the page's commands need curl")
def test_the_page_s_commands_work(catalog: Api, guest: Guest) -> None:
    done = sh(blocks("sh")[1], catalog, guest)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"name":"orders"' in done.stdout
    assert '"storage-credentials"' in done.stdout


@pytest.mark.skipif(not shutil.which("curl"), reason="the page's commands need curl")
def test_the_writes_of_the_page_are_readable(
    catalog: Api, guest: Guest, capsys: pytest.CaptureFixture[str]
) -> None:
    with duck(catalog, guest) as connection:
        for statement in blocks("sql")[1].replace("acme", guest.tenant.slug).strip().split(";\n"):
            rows = connection.execute(statement).fetchall()
    assert rows == [("DE", 6)]
    exec(blocks("python")[1], {"catalog": rest(catalog, guest)})  # noqa: S102
    assert "[{'country': 'FR', 'orders': 2}]" in capsys.readouterr().out
    done = sh(blocks("sh")[0], catalog, guest)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "1"
    assert not rest(catalog, guest).namespace_exists("reports")


def test_the_notebook_runs(catalog: Api, guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CATALOG", catalog.url), ("TENANT", guest.tenant.slug), ("KEY", guest.key.text)):
        monkeypatch.setenv(name, value)
    notebook = json.loads((DOCS / "examples" / "lake.ipynb").read_text())
    variables: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), variables)  # noqa: S102
    assert variables["orders"].num_rows == 6
    assert [orders for _, orders in variables["by_day"]] == [6]
