"""Settings of Spark tasks: what they need of the run's goes with them, as a value among their arguments.

An executor has no settings of its own, and no file in common with the run. Secrets are in no configuration of
Spark's, which its UI, its event log and every session show.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from pulse_resources import kafka, object_store, postgres
from pulse_resources.errors import UserError
from pulse_resources.settings import Settings, give

SECTIONS = ("postgres", "kafka", "object_store", "ingest")
_HELD: dict[str, str] = {}
"""Files that this process has as memory, by the digest of their content."""


@dataclass(frozen=True)
class TaskSettings:
    """What a task is told of the run's settings."""

    sections: str = field(repr=False)
    """JSON, with secrets."""
    files: Mapping[str, bytes] = field(repr=False)
    """Content of the files that they name: certificates and keys."""


class _Given(Settings):
    """Settings that are what was given, whatever an executor's environment says."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def of_run(settings: Settings) -> TaskSettings:
    """What tasks of a run with these settings are told.

    Raises:
        UserError: a file that the settings name cannot be read.
    """
    files: dict[str, bytes] = {}
    sections = {name: _plain(getattr(settings, name), files) for name in SECTIONS}
    passwords = sections["postgres"]["role_passwords"]
    sections["postgres"]["role_passwords"] = {
        role: password for role, password in passwords.items() if role == postgres.TASKS
    }
    del sections["postgres"]["superuser_password"]
    return TaskSettings(orjson.dumps(sections).decode(), files)


def take(given: TaskSettings) -> None:
    """In a task: these are the settings of this process from now on; clients that had others are dropped."""
    sections = orjson.loads(given.sections)
    for section in sections.values():
        for name, value in section.items():
            if isinstance(value, str) and value in given.files:
                section[name] = _held(given.files[value])
    if give(_Given(**sections)):
        forget_clients()


def forget_clients() -> None:
    """Drop every client that this process keeps: who asks for one gets one by the settings as they are."""
    postgres.close_pools()
    kafka.admin.cache_clear()
    object_store.file_system.cache_clear()


def _plain(part: BaseModel, files: dict[str, bytes]) -> dict[str, Any]:
    """A section as JSON takes it; files by names that stand for their content."""
    found: dict[str, Any] = {}
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, Path):
            try:
                content = value.read_bytes()
            except OSError as error:
                raise UserError(
                    f"{value} cannot be read: {error}", fix="Name a file that this account may read"
                ) from error
            value = f"file:{sha256(content).hexdigest()}"
            files[value] = content
        elif isinstance(value, Mapping):
            value = {key: _shown(each) for key, each in value.items()}
        found[name] = _shown(value)
    return found


def _shown(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _held(content: bytes) -> str:
    """A path at which libraries find the content: memory of this process, which no disk ever has."""
    known = sha256(content).hexdigest()
    if known not in _HELD:
        number = os.memfd_create("pulse")
        os.fchmod(number, 0o600)  # libpq takes no key that others could read
        os.write(number, content)
        _HELD[known] = f"/proc/self/fd/{number}"
    return _HELD[known]
