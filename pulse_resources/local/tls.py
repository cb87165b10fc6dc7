"""Certificates of a stack whose services speak TLS: `pulse up --tls`.

An authority of the stack's own signs one certificate, which servers and clients present alike; it is for
127.0.0.1 and for no name. Kafka and Postgres let nobody in without it.
"""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pulse_resources.errors import Terminal, UserError
from pulse_resources.local.accounts import Account, give
from pulse_resources.local.layout import Layout, write_atomically

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
    """PEM files in a folder that only the stack's owner may enter."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def certificate(self) -> Path:
        return self.folder / "certificate.pem"

    @property
    def key(self) -> Path:
        return self.folder / "key.pem"

    def copy(self, owner: Account | None, **targets: Path) -> None:
        """Copies for a service, which its account alone may read.

        Args:
            targets: where to, by which: `authority`, `certificate`, `key`, or `both` of the latter two.
        """
        for which, target in targets.items():
            sources = (self.key, self.certificate) if which == "both" else (getattr(self, which),)
            write_atomically(target, "".join(source.read_text() for source in sources))
            give(owner, target)


def certificates(layout: Layout) -> Certificates | None:
    """Those of the stack; None: its services speak plain text."""
    found = Certificates(layout.home / "tls")
    return found if found.certificate.exists() else None


def make(layout: Layout) -> Certificates:
    """Those of the stack, made where there are none yet.

    Raises:
        UserError: openssl is missing.
        Terminal: it failed.
    """
    found = Certificates(layout.folder("tls"))
    configuration, signing = found.folder / "openssl.cnf", found.folder / "ca.key"
    if not found.certificate.exists():
        write_atomically(configuration, _CONFIGURATION)
        _request(configuration, "authority", found.authority, signing)
        fresh = found.folder / "certificate.new"  # the certificate comes last, and says that all is there
        signed = ("-CA", str(found.authority), "-CAkey", str(signing))
        _request(configuration, "service", fresh, found.key, *signed)
        fresh.rename(found.certificate)
    return found


def _request(configuration: Path, section: str, certificate: Path, key: Path, *signed: str) -> None:
    if (program := shutil.which("openssl")) is None:
        raise UserError("openssl was not found", fix="Install it, or start the stack without --tls")
    days = _DAYS if signed else 2 * _DAYS
    done = subprocess.run(
        [
            *(program, "req", "-x509", "-config", str(configuration), "-extensions", section),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", str(days)),
            *("-subj", f"/CN=Pulse {section} of this machine"),
            *("-keyout", str(key), "-out", str(certificate), *signed),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Terminal(f"openssl made no certificate: {done.stderr.strip()}", fix="It has to be version 3")
