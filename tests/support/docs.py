"""Pages of documentation, executed as a person would."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from chaos.waiting import PATIENCE_S

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str = "sh") -> list[str]:
    """The examples of a page in a language."""
    text = (DOCS / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run(script: str, folder: Path, *, seconds: float = PATIENCE_S, **environment: str) -> str:
    """Run commands as a person would, but for one thing: an answer that is an error ends it."""
    curl = shutil.which("curl")
    preamble = f'set -euo pipefail\ncurl() {{ {curl} --fail-with-body -sS "$@"; }}\n'
    if "KEY" not in environment:
        script += '\necho; echo "KEY IS $KEY"\n'
    done = subprocess.run(
        [str(shutil.which("bash")), "-c", preamble + script],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_as(tenant: str, page: str, folder: Path, **environment: str) -> str:
    """Run all commands of a page in order, those of `acme` as a tenant's; returns what they print."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = re.sub(r"\bacme\b", tenant, "\n".join(blocks(page)))
    return run(script, folder, PATH=path, **environment)
