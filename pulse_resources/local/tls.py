"""Certificates of a stack whose services use TLS: `pulse up --tls`.

The stack's own authority signs one for each service and one for clients, all for 127.0.0.1 and for no host
name. Kafka and Postgres require one of clients. No service's account can read another's key.
"""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pulse_resources.errors import Terminal, UserError
from pulse_resources.home import write_atomically
from pulse_resources.local.accounts import Account, give
from pulse_resources.local.layout import Layout

CLIENT = "client"
_NAMES = ("postgres", "kafka", "minio", CLIENT)
_AUTHORITY = "ca"
_DAYS = 3_650
_CONFIGURATION = """\
[req]
distinguished_name = name
prompt = no
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[service]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = IP:127.0.0.1
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


@dataclass(frozen=True)
class Certificates:
    """PEM files of one certificate holder, in a folder that only the stack's owner may enter."""

    folder: Path
    name: str

    @property
    def authority(self) -> Path:
        return self.folder / f"{_AUTHORITY}.pem"

    @property
    def certificate(self) -> Path:
        return self.folder / f"{self.name}.pem"

    @property
    def key(self) -> Path:
        return self.folder / f"{self.name}.key"

    def copy(self, owner: Account | None, **targets: Path) -> None:
        """Copy files for a service, readable by its account only.

        Args:
            targets: destination by kind: `authority`, `certificate`, `key`, or `both` of the latter two.
        """
        for kind, target in targets.items():
            sources = (self.key, self.certificate) if kind == "both" else (getattr(self, kind),)
            write_atomically(target, "".join(source.read_text() for source in sources))
            give(owner, target)


def certificates(layout: Layout, name: str) -> Certificates | None:
    """Certificates of a service; None: the stack's services use plain text."""
    certificates = Certificates(layout.home / "tls", name)
    return certificates if certificates.certificate.exists() else None


def make(layout: Layout) -> Certificates:
    """Create all missing certificates; returns the clients'.

    Raises:
        UserError: openssl is missing.
        Terminal: it failed.
    """
    folder = layout.folder("tls")
    write_atomically(folder / "openssl.cnf", _CONFIGURATION)
    authority = Certificates(folder, _AUTHORITY)
    _make(authority, "authority", 2 * _DAYS)
    signed = ("-CA", str(authority.certificate), "-CAkey", str(authority.key))
    for name in _NAMES:
        _make(Certificates(folder, name), "service", _DAYS, *signed)
    return Certificates(folder, CLIENT)


def _make(certificates: Certificates, section: str, days: int, *signed: str) -> None:
    if certificates.certificate.exists():
        return
    if (program := shutil.which("openssl")) is None:
        raise UserError("openssl was not found", fix="Install it, or start the stack without --tls")
    fresh = certificates.certificate.with_suffix(".new")  # renamed when complete, once its key exists
    done = subprocess.run(
        [
            program,
            "req",
            "-x509",
            "-config",
            str(certificates.folder / "openssl.cnf"),
            "-extensions",
            section,
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            str(days),
            "-subj",
            f"/CN=Pulse {certificates.name} of this machine",
            "-keyout",
            str(certificates.key),
            "-out",
            str(fresh),
            *signed,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Terminal(f"openssl made no certificate: {done.stderr.strip()}", fix="It has to be version 3")
    fresh.rename(certificates.certificate)
