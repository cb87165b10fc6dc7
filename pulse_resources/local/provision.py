"""Addresses and passwords of the embedded services.

They are chosen once and stored in `settings.json`, so that addresses survive restarts. Services given by the
environment (`PULSE_KAFKA__BOOTSTRAP_SERVERS=...`) are external and never stored.
"""

import json
import os
import secrets
import uuid
from typing import Any, get_args

from pydantic import TypeAdapter

from pulse_resources.errors import UserError
from pulse_resources.home import write_atomically
from pulse_resources.local import ports, tls
from pulse_resources.local.layout import Layout
from pulse_resources.settings import Settings, load_settings
from pulse_resources.settings.service_settings import Role

ADDRESS_SETTINGS = {
    "postgres": "PULSE_POSTGRES__HOST",
    "kafka": "PULSE_KAFKA__BOOTSTRAP_SERVERS",
    "minio": "PULSE_OBJECT_STORE__ENDPOINT",
    "spark": "PULSE_SPARK__REMOTE",
}
"""Variable that makes a service external: if it is set, the service is used and not started."""

_SECRETS = (
    "superuser",
    "kafka",
    "object_store",
    "vending",
    "spark",
    "control_room",
    "control_room_read_only",
    "lake",
)
DEFAULT_PORTS = {
    "postgres": 5432,
    "kafka": 9092,
    "kafka_controller": 9093,
    "minio": 9000,
    "spark": 15002,
    "api": 8000,
    "api_health": 8001,
    "lake": 8181,
    "lake_health": 8182,
    "webserver": 3000,
}
_LISTENER = {
    "kafka_controller": "kafka",
    "api_health": "api",
    "lake_health": "lake",
    "webserver": "dagster-webserver",
}
"""Service that listens at a port, if the names differ."""
_CONFIGURED_BY = {
    "postgres": "PULSE_POSTGRES__PORT",
    "api": "PULSE_API__PORT",
    "api_health": "PULSE_API__HEALTH_PORT",
    "lake": "PULSE_LAKE__PORT",
    "lake_health": "PULSE_LAKE__HEALTH_PORT",
    "webserver": "PULSE_DAGSTER__WEBSERVER_PORT",
}


def external() -> frozenset[str]:
    """Names of the services that the environment gives by address."""
    return frozenset(name for name, variable in ADDRESS_SETTINGS.items() if os.environ.get(variable))


def provision(layout: Layout, *, with_tls: bool = False) -> Settings:
    """Write `settings.json` for the embedded services, and return the settings in force.

    No service of this stack may be running: a port in use counts as taken by another program.

    Args:
        with_tls: newly created services use TLS, now and later.
    """
    remembered = _remembered(layout)
    local = {
        "tls": remembered.get("tls", with_tls and not remembered),
        "ports": _ports(remembered.get("ports", {})),
        "secrets": remembered.get("secrets", {}),
        "spark_session": remembered.get("spark_session", str(uuid.uuid4())),
        "kafka_mechanism": remembered.get("kafka_mechanism", _kafka_mechanism(layout)),
    }
    for name in (*_SECRETS, *get_args(Role)):
        local["secrets"].setdefault(name, secrets.token_hex(16))
    written = _settings(local, tls.make(layout) if local["tls"] else None)
    write_atomically(layout.settings_file, json.dumps(written, indent=2) + "\n")
    load_settings.cache_clear()
    return load_settings()


def check_tls(layout: Layout) -> None:
    """Raise UserError if existing services were created without TLS."""
    remembered = _remembered(layout)
    if remembered and not remembered.get("tls"):
        raise UserError(
            f"the services in {layout.home} were set up without TLS, and stay so",
            fix="Start others in a folder of their own: PULSE_HOME=/path pulse up --tls",
        )


def _kafka_mechanism(layout: Layout) -> str:
    """SCRAM; data that an earlier version formatted has no credentials for it.

    Each client hashes the password 4,096 times per connection, three times as long with SHA-512. The password
    is random, so no number of hashes makes it harder to guess.
    """
    return "PLAIN" if (layout.home / "kafka" / "data").exists() else "SCRAM-SHA-256"


def local_port(layout: Layout, name: str) -> int:
    """Port that only the embedded stack uses (Kafka's controller)."""
    return int(_remembered(layout)["ports"][name])


def lost_port(layout: Layout, service: str) -> int | None:
    """Port of a stopped service that another program has taken since it was chosen.

    The next `provision` chooses another one.
    """
    named = _remembered(layout).get("ports", {}).items()
    service_ports = (port for name, port in named if _LISTENER.get(name, name) == service)
    return next((port for port in service_ports if not ports.is_free(port)), None)


def _remembered(layout: Layout) -> dict[str, Any]:
    try:
        written = json.loads(layout.settings_file.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(
            "settings.json is not valid JSON", fix="Repair it, or remove the whole folder"
        ) from error
    local: dict[str, Any] = written.get("local", {})
    return local


def _ports(remembered: dict[str, int]) -> dict[str, int]:
    chosen: dict[str, int] = {}
    for name, default in DEFAULT_PORTS.items():
        if name.removesuffix("_controller") in external():
            # Kept for when the service is embedded again.
            chosen[name] = remembered.get(name, default)
        elif configured := os.environ.get(_CONFIGURED_BY.get(name, "")):
            chosen[name] = _configured(_CONFIGURED_BY[name], configured)
        else:
            chosen[name] = ports.choose(remembered.get(name, default), chosen.values())
    return chosen


def _configured(variable: str, value: str) -> int:
    port = TypeAdapter(int).validate_python(value)  # as settings are read: `check_environment` has done so
    if not ports.is_free(port):
        raise UserError(
            f"{variable}={value} cannot be used: another program has that port",
            fix="Name a free port, or unset the variable to have one chosen",
        )
    return port


def _settings(local: dict[str, Any], certificates: tls.Certificates | None) -> dict[str, Any]:
    port, secret, external_services = local["ports"], local["secrets"], external()
    written: dict[str, Any] = {
        "local": local,
        # Pulse creates these roles in an external Postgres too, so their passwords are always stored here.
        "postgres": {"role_passwords": {role: secret[role] for role in get_args(Role)}},
        "api": {"port": port["api"], "health_port": port["api_health"]},
        "lake": {
            "port": port["lake"],
            "health_port": port["lake_health"],
            "token_secret": secret["lake"],
        },
        "dagster": {
            "webserver_port": port["webserver"],
            "token": secret["control_room"],
            "read_only_token": secret["control_room_read_only"],
        },
    }
    if "postgres" not in external_services:
        written["postgres"] |= {
            "host": "127.0.0.1",
            "port": port["postgres"],
            "superuser_password": secret["superuser"],
            "require_auth": "scram-sha-256",
        }
    if "kafka" not in external_services:
        written["kafka"] = {
            "bootstrap_servers": f"127.0.0.1:{port['kafka']}",
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": local["kafka_mechanism"],
            "password": secret["kafka"],
        }
    if "minio" not in external_services:
        written["object_store"] = {
            "endpoint": f"http://127.0.0.1:{port['minio']}",
            "access_key": "pulse",
            "secret_key": secret["object_store"],
            "vending_secret_key": secret["vending"],
            "vending_by_tenant": True,
        }
    if "spark" not in external_services:
        # One session for all clients: Spark starts Python workers for each session (1.5 s, and 350 MB that
        # stay), and the warm ones of a shared session serve the next run in 0.4 s. Its id is not secret
        # (Spark logs it with an error): entering it requires the token.
        access = f"authorization=Bearer%20{secret['spark']};session_id={local['spark_session']}"
        written["spark"] = {"remote": f"sc://127.0.0.1:{port['spark']}/;{access}"}
    if certificates:
        _encrypt(written, certificates)
    return written


def _encrypt(written: dict[str, Any], certificates: tls.Certificates) -> None:
    """Make clients use TLS with the embedded services."""
    authority, certificate, key = map(
        str, (certificates.authority, certificates.certificate, certificates.key)
    )
    if "host" in written["postgres"]:
        written["postgres"] |= {"sslrootcert": authority, "sslcert": certificate, "sslkey": key}
    if kafka := written.get("kafka"):
        kafka |= {"security_protocol": "SASL_SSL", "ca_file": authority}
        kafka |= {"certificate_file": certificate, "key_file": key}
    if store := written.get("object_store"):
        store |= {"endpoint": store["endpoint"].replace("http:", "https:"), "ca_file": authority}
