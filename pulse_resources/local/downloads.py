"""Downloads, once per user: jars from Maven, the MinIO binary built by Go."""

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from pulse_resources.errors import Transient, UserError
from pulse_resources.local.layout import cache
from pulse_resources.local.prerequisites import java

Report = Callable[[str], None]
"""Receives a short line on the progress of a download, repeatedly; an exception ends the download."""
_TICK_S = 0.2
_WITHOUT_POMS = """\
<ivysettings><settings defaultResolver="maven"/><resolvers>
  <ibiblio name="maven" m2compatible="true" usepoms="false"/>
</resolvers></ivysettings>
"""


@dataclass(frozen=True)
class Download:
    """Item of the cache: complete, or absent."""

    name: str
    title: str
    fill: Callable[[Path, Report], None]
    """Writes the content into an empty folder."""

    @property
    def path(self) -> Path:
        return cache() / self.name

    def present(self) -> bool:
        return self.path.is_dir()

    def fetch(self, report: Report) -> None:
        """Fill the cache unless another process did; two clones may do this at once."""
        cache().mkdir(parents=True, exist_ok=True)
        with _locked(cache() / f".{self.name}.lock", report):
            if self.present():
                return
            fresh = Path(tempfile.mkdtemp(prefix=f".{self.name}.", dir=cache()))
            try:
                self.fill(fresh, report)
                fresh.chmod(0o755)
                fresh.rename(self.path)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)


@contextmanager
def _locked(path: Path, report: Report) -> Iterator[None]:
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                report("another process is fetching it: waiting")
                time.sleep(_TICK_S)
        yield


@dataclass(frozen=True)
class Jar:
    """Maven coordinates; `alone` excludes the dependencies."""

    group: str
    artifact: str
    version: str
    alone: bool = False
    classifiers: tuple[str, ...] = ()
    """Classifiers of its jars, where it has several; the empty one is the jar itself."""
    kind: str = "jar"
    """Type of its file, which is an archive where this is `zip` or `tar.gz`."""

    def xml(self) -> str:
        """The dependency as Ivy reads it."""
        names = f"org={quoteattr(self.group)} name={quoteattr(self.artifact)}"
        transitive = "false" if self.alone else "true"
        plain = ("",) if self.kind != "jar" else ()  # otherwise Ivy finds it by itself
        kind = quoteattr(self.kind)
        several = "".join(
            f"<artifact name={quoteattr(self.artifact)} type={kind} ext={kind}"
            f"{f' m:classifier={quoteattr(name)}' if name else ''}/>"
            for name in self.classifiers or plain
        )
        return (
            f"<dependency {names} rev={quoteattr(self.version)} "
            f'transitive="{transitive}" conf="default->default">{several}</dependency>'
        )


def jars(name: str, title: str, *coordinates: Jar) -> Download:
    """Folder of jars, resolved by the Ivy in the pyspark wheel."""

    def fill(folder: Path, report: Report) -> None:
        module = folder / "ivy.xml"
        module.write_text(
            '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
            '<info organisation="pulse" module="jars"/>'
            '<configurations><conf name="default"/></configurations>'
            f"<dependencies>{''.join(jar.xml() for jar in coordinates)}</dependencies></ivy-module>"
        )
        ivy_cache = folder / ".ivy"
        ivy = next((spark_home() / "jars").glob("ivy-*.jar"))
        pattern = f"{folder}/[artifact]-[revision](-[classifier]).[ext]"
        where = ["-cache", str(ivy_cache), "-ivy", str(module), "-retrieve", pattern]
        if all(
            jar.alone for jar in coordinates
        ):  # a POM, with all that it imports, would be read for nothing
            settings = folder / "ivysettings.xml"
            settings.write_text(_WITHOUT_POMS)
            where += ["-settings", str(settings)]
        types = sorted({"jar", "bundle"} | {jar.kind for jar in coordinates})
        options = ["-warn", "-types", *types, "-confs", "default", *where]
        run(
            [java(), "-jar", str(ivy), *options],
            title,
            lambda seconds: report(f"{_megabytes(ivy_cache):.0f} MB in {seconds:.0f} s"),
        )
        shutil.rmtree(ivy_cache)
        for description in folder.glob("ivy*.xml"):
            description.unlink()

    return Download(name, title, fill)


def spark_home() -> Path:
    """Spark distribution inside the pyspark wheel."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise UserError("pyspark is not installed", fix="Run `make setup`")
    return Path(spec.origin).parent


def run(
    command: list[str],
    title: str,
    tick: Callable[[float], None],
    env: dict[str, str] | None = None,
) -> None:
    """Run a download or build, calling `tick(seconds)`; its output is shown only if it fails."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | (env or {}),
        ) as process:
            try:
                while process.poll() is None:
                    tick(time.monotonic() - started)
                    time.sleep(_TICK_S)
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            output.seek(0)
            tail = "\n".join(line[:300] for line in output.read().splitlines()[-15:])
            raise Transient(
                f"Fetching {title} failed:\n{tail}",
                fix="Check the network, then run `pulse up` again",
            )


def _megabytes(folder: Path) -> float:
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # it is renamed when its download is complete
            total += file.stat().st_size
    return total / 1e6
