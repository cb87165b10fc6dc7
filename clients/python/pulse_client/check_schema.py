"""Check JSON Schemas against Pulse, before they are merged: `python -m pulse_client.check_schema orders.json`.

Nothing is published. Each file is what `POST /v1/schemas` would publish under the name of the file, or of --name.
With --dataset, the schema must also be one to which the dataset can move without changing what it has.

The address of the API is in PULSE_URL, a key with the scope `read` in PULSE_KEY. In GitHub Actions, each problem
is an annotation of its file. Exit codes: 0, every schema can be published; 1, one cannot, or Pulse does not
answer; 2, the command is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from pulse_client.words import clean

TIMEOUT_S = 60.0
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_ANNOTATION = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_ANNOTATION, ":": "%3A", ",": "%2C"}


def main(arguments: Sequence[str] | None = None, http: httpx.Client | None = None) -> int:
    """Check the files; returns the exit code.

    Args:
        arguments: by default, those of the command line.
        http: a client of httpx with your own proxies or certificates; it is closed.
    """
    options = _parse(arguments)
    with http or httpx.Client(timeout=TIMEOUT_S) as client:
        failed = [path for path in options.files if not _report(path, _check(client, path, options))]
    return 1 if failed else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m pulse_client.check_schema",
        description=about,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a JSON Schema, as JSON")
    parser.add_argument("--dataset", help="a dataset that is to move to the schema")
    parser.add_argument("--name", help="name of the schema (default: that of the file, without its ending)")
    options = parser.parse_args(arguments)
    options.url, options.key = os.environ.get("PULSE_URL", ""), os.environ.get("PULSE_KEY", "")
    for variable, value in (("PULSE_URL", options.url), ("PULSE_KEY", options.key)):
        if not value:
            parser.error(f"{variable} is not set: it is the {_MEANINGS[variable]}")
    if options.name and len(options.files) > 1:
        parser.error("--name is for one file")
    return options


_MEANINGS = {"PULSE_URL": "address of the API", "PULSE_KEY": "key of the tenant, with the scope read"}


def _check(client: httpx.Client, path: Path, options: argparse.Namespace) -> Iterator[str]:
    """The problems of a file; prints the columns of a schema that can be published."""
    name = options.name or re.sub(r"[^a-z0-9]+", "_", path.name.partition(".")[0].lower()).strip("_")
    if not _NAME.fullmatch(name):
        yield f"{clean(name)!r} is not the name of a schema: give one by --name"
        return
    try:
        text = path.read_text("utf-8-sig")
        json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        yield f"it is not JSON: {clean(error)}" if isinstance(error, ValueError) else clean(error)
        return
    try:
        answer = client.post(
            f"{options.url.rstrip('/')}/v1/schemas/check",
            params={"dataset": options.dataset} if options.dataset else None,
            content=f'{{"name": "{name}", "schema": {text}}}'.encode(),  # with all digits of its numbers
            headers={"Authorization": f"Bearer {options.key}", "Content-Type": "application/json"},
        )
        document = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        yield f"Pulse does not answer at {clean(options.url)}: {clean(error) or type(error).__name__}"
    except ValueError:
        yield f"{clean(options.url)} answers with something else than JSON (status {answer.status_code})"
    else:
        yield from _problems(path, answer.status_code, document)


def _problems(path: Path, status: int, document: Any) -> Iterator[str]:
    if not isinstance(document, Mapping):
        yield f"the answer does not come from a Pulse API (status {status})"
    elif status != httpx.codes.OK:
        detail, fix = document.get("detail") or document.get("title"), document.get("fix")
        yield ". ".join(clean(text).rstrip(".") for text in (detail or f"status {status}", fix) if text)
    else:
        obstacles = document.get("incompatibilities") or ()
        for obstacle in obstacles:
            yield clean(": ".join(str(obstacle.get(part)) for part in ("pointer", "change", "reason")))
        columns = ", ".join(f"{column['name']} {column['type']}" for column in document["columns"])
        print(f"{path}: {clean(columns, 5_000)}")


def _report(path: Path, problems: Iterator[str]) -> bool:
    """Print the problems of a file; whether there are none."""
    passed = True
    for problem in problems:
        passed = False
        print(f"{path}: {problem}", file=sys.stderr)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            print(f"::error file={_escaped(str(path), _PROPERTY)}::{_escaped(problem, _ANNOTATION)}")
    return passed


def _escaped(text: str, escapes: Mapping[str, str]) -> str:
    return "".join(escapes.get(character, character) for character in text)


if __name__ == "__main__":
    sys.exit(main())
