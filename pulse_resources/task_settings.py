"""Settings of Spark tasks: the needed part of the run's settings, passed as a task argument.

An executor has no settings of its own, and shares no file with the run. Secrets are in no Spark
configuration, which its UI, its event log and every session show.
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
from pulse_resources.store_keys import vended

SECTIONS = ("postgres", "kafka", "object_store", "ingest")
_MEMORY_FILES: dict[str, str] = {}
"""Paths of files in this process's memory, by the digest of their content."""


@dataclass(frozen=True)
class TaskSettings:
    """Settings of the run for its tasks."""

    sections: str = field(repr=False)
    """JSON, with secrets."""
    files: Mapping[str, bytes] = field(repr=False)
    """Content of the files named in the settings: certificates and keys."""


class _ExplicitSettings(Settings):
    """Settings from the given values only, ignoring the executor's environment."""

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
    """Task settings of a run.

    Raises:
        UserError: a file named in the settings cannot be read.
    """
    files: dict[str, bytes] = {}
    sections = {name: _plain(getattr(settings, name), files) for name in SECTIONS}
    passwords = sections["postgres"]["role_passwords"]
    sections["postgres"]["role_passwords"] = {
        role: password for role, password in passwords.items() if role == postgres.TASKS
    }
    del sections["postgres"]["superuser_password"]
    return TaskSettings(orjson.dumps(sections).decode(), files)


def take(settings: TaskSettings) -> None:
    """Use these settings in a task's process from now on; clients with other settings are dropped."""
    sections = orjson.loads(settings.sections)
    for section in sections.values():
        for name, value in section.items():
            if isinstance(value, str) and value in settings.files:
                section[name] = _memory_file(settings.files[value])
    if give(_ExplicitSettings(**sections)):
        forget_clients()


def forget_clients() -> None:
    """Drop all cached clients of this process: new ones use the current settings."""
    postgres.close_pools()
    kafka.forget_clients()
    object_store.file_system.cache_clear()
    vended.forget()


def _plain(part: BaseModel, files: dict[str, bytes]) -> dict[str, Any]:
    """A section as JSON values; files are replaced by names derived from their content."""
    documents: dict[str, Any] = {}
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
            value = {key: _shown(item) for key, item in value.items()}
        documents[name] = _shown(value)
    return documents


def _shown(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _memory_file(content: bytes) -> str:
    """Path through which libraries read content held in this process's memory, never on disk."""
    digest = sha256(content).hexdigest()
    if digest not in _MEMORY_FILES:
        number = os.memfd_create("pulse")
        os.fchmod(number, 0o600)  # libpq rejects keys that others could read
        os.write(number, content)
        _MEMORY_FILES[digest] = f"/proc/self/fd/{number}"
    return _MEMORY_FILES[digest]
