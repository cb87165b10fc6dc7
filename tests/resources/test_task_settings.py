"""What Spark's tasks are told of a run's settings: what they need, no other secret, files as memory."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from pulse_resources import settings as of_process, task_settings
from pulse_resources.errors import UserError
from pulse_resources.settings import IngestSettings, Settings, load_settings
from pulse_resources.settings.service_settings import KafkaSettings, PostgresSettings


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose settings may be given, and are its own again afterwards."""
    monkeypatch.setattr(of_process, "_overrides", [])
    yield
    load_settings.cache_clear()


def of_a_run(folder: Path) -> Settings:
    (folder / "ca.pem").write_bytes(b"an authority")
    (folder / "key.pem").write_bytes(b"a key")
    roles = {role: SecretStr(f"of {role}") for role in ("pulse_owner", "pulse_pipeline", "pulse_catalog")}
    return Settings(
        postgres=PostgresSettings(
            host="db.example.com",
            superuser_password=SecretStr("of the superuser"),
            role_passwords=roles,
            sslrootcert=folder / "ca.pem",
            sslkey=folder / "key.pem",
        ),
        kafka=KafkaSettings(password=SecretStr("of kafka"), ca_file=folder / "ca.pem"),
        ingest=IngestSettings(chunk_rows=7),
    )


def test_a_task_goes_by_the_settings_of_its_run(
    process: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_settings = task_settings.of_run(of_a_run(tmp_path))
    for file in tmp_path.iterdir():
        file.unlink()  # the executor has another disk
    monkeypatch.setenv("PULSE_POSTGRES__HOST", "of the executor")
    monkeypatch.setenv("PULSE_NO__SETTING", "whatever it is")
    task_settings.take(run_settings)
    settings = load_settings()
    assert (settings.postgres.host, settings.ingest.chunk_rows) == ("db.example.com", 7)
    assert settings.kafka.password.get_secret_value() == "of kafka"
    assert Path(str(settings.kafka.ca_file)).read_bytes() == b"an authority"
    key = Path(str(settings.postgres.sslkey))
    assert (key.read_bytes(), key.stat().st_mode & 0o777) == (b"a key", 0o600)


def test_a_task_gets_no_secret_that_it_does_not_need(process: None, tmp_path: Path) -> None:
    run_settings = task_settings.of_run(of_a_run(tmp_path))
    assert "of pulse_pipeline" in run_settings.sections
    for secret in ("of pulse_owner", "of pulse_catalog", "of the superuser"):
        assert secret not in run_settings.sections
    assert "of " not in repr(run_settings), "its repr shows no secret"


def test_clients_stay_until_the_settings_change(process: None, tmp_path: Path) -> None:
    settings = of_a_run(tmp_path)
    task_settings.take(task_settings.of_run(settings))
    first = load_settings()
    task_settings.take(task_settings.of_run(settings))
    assert load_settings() is first
    task_settings.take(task_settings.of_run(settings.model_copy(update={"ingest": IngestSettings()})))
    assert load_settings() != first


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    settings = of_a_run(tmp_path)
    (tmp_path / "key.pem").unlink()
    with pytest.raises(UserError, match=r"key\.pem cannot be read"):
        task_settings.of_run(settings)
