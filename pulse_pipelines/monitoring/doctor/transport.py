"""Transport: whether a service speaks TLS, and whether its certificate proves its identity.

Checked with a separate handshake, because the services' clients report little more than a failed connection.
"""

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pulse_pipelines.monitoring.doctor.finding import PATIENCE_S, Finding

CHECK = "tls"
SOON_DAYS = 14
"""Certificates that expire within this time are reported as due for renewal."""
_NOT_YET, _EXPIRED, _OTHER_NAME, _OTHER_ADDRESS = 9, 10, 62, 64
"""OpenSSL's codes; the remaining ones mean an unknown authority."""
_DAY_S = 86_400

Proof = Literal["name", "authority", "none"]
"""What a certificate must prove: that it is for this name, that an authority signed it, or nothing."""


def at_once(_: socket.socket) -> bool:
    """For services where TLS begins with the first byte."""
    return True


@dataclass(frozen=True)
class Tls:
    """TLS configuration of a service's clients, from the settings."""

    service: str
    proof: Proof
    authorities: Path | None
    """File of authorities; None: those that the machine trusts."""
    authorities_setting: str
    address_setting: str
    plain_fix: str
    """Remedy if the service speaks plain text."""
    certificate: Path | None = None
    key: Path | None = None
    key_password: str | None = None
    certificate_settings: str = ""
    starts: Callable[[socket.socket], bool] = at_once
    """Requests TLS in the service's own protocol; False: the service has none."""

    def check(self, host: str, port: int) -> list[Finding]:
        """Check whether a handshake succeeds and, if proof is required, how long the certificate is valid."""
        where = f"{host}:{port}"
        try:
            context = self._context()
        except (OSError, ValueError) as error:  # ssl.SSLError among them
            fix = "Name PEM files that this account may read: certificates, or a certificate and its own key"
            return self._wrong(str(error), fix)
        try:
            with socket.create_connection((host, port), PATIENCE_S) as plain:
                if not self.starts(plain):
                    return self._wrong(f"{where} speaks plain text", self.plain_fix)
                with context.wrap_socket(plain, server_hostname=host) as secured:
                    version, certificate = secured.version(), secured.getpeercert() or {}
        except ssl.SSLCertVerificationError as error:
            return self._untrusted(host, where, error)
        except (ssl.SSLError, ConnectionError) as error:
            problem = f"{where} does not answer in TLS: it speaks plain text, or ends the handshake ({error})"
            return self._wrong(problem, self.plain_fix)
        except OSError as error:
            return self._wrong(f"{where} does not continue the handshake: {error}", self.plain_fix)
        if (until := certificate.get("notAfter")) is None:
            problem = f"{version}; the settings ask for no proof of who answers"
            return [Finding(self.service, CHECK, True, problem)]
        remaining_days = (ssl.cert_time_to_seconds(str(until)) - time.time()) / _DAY_S
        fix = f"Renew the certificate of {where}"
        return [
            Finding(self.service, CHECK, True, f"{version}, with a certificate for {host}"),
            Finding(self.service, "certificate", remaining_days > SOON_DAYS, f"valid until {until}", fix),
        ]

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.authorities)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{self.authorities_setting}={self.authorities} cannot be used: {error}"
            ) from error
        context.check_hostname = self.proof == "name"
        context.verify_mode = ssl.CERT_NONE if self.proof == "none" else ssl.CERT_REQUIRED
        if self.certificate:
            try:
                context.load_cert_chain(self.certificate, self.key, self.key_password or "")
            except (OSError, ValueError) as error:
                raise ValueError(
                    f"{self.certificate_settings}: {self.certificate} and {self.key} cannot be used: {error}"
                ) from error
        return context

    def _untrusted(self, host: str, where: str, error: ssl.SSLCertVerificationError) -> list[Finding]:
        if error.verify_code == _EXPIRED:
            return self._wrong(f"the certificate of {where} has expired", "Renew it, and restart the service")
        if error.verify_code == _NOT_YET:
            fix = "Compare the clocks of both machines (NTP), or have the certificate issued again"
            return self._wrong(f"the certificate of {where} is not valid yet", fix)
        if error.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
            fix = (
                f"Write the name that the certificate is for into {self.address_setting}, or have one issued "
                f"that names {host} (openssl s_client shows it)"
            )
            return self._wrong(f"the certificate of {where} is not for the host name {host}", fix)
        fix = f"Set {self.authorities_setting} to a PEM file of the authority that signed it"
        return self._wrong(
            f"the certificate of {where} is signed by an authority that is unknown ({error.verify_message})",
            fix,
        )

    def _wrong(self, problem: str, fix: str) -> list[Finding]:
        return [Finding(self.service, CHECK, False, problem, fix)]


def offered(
    service: str, host: str, port: int, fix: str, starts: Callable[[socket.socket], bool] = at_once
) -> Finding | None:
    """Check a service for which the settings specify plain text: a finding if it speaks TLS; else None."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), PATIENCE_S) as plain:
            if not starts(plain):
                return None
            with context.wrap_socket(plain, server_hostname=host):
                pass
    except OSError:  # ssl.SSLError among them
        return None
    return Finding(service, CHECK, False, f"{host}:{port} speaks TLS, and the settings plain text", fix)
