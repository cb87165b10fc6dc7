"""`pulse console`: an address with a key of one hour, and which rights the key has."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from support.ingest import Owner
from typer.testing import CliRunner

from pulse_api import cli
from pulse_pipelines.domain.key import KeyScope, Presented
from pulse_pipelines.registry import keys
from pulse_resources.settings import load_settings

MANAGES = {KeyScope.READ, KeyScope.LAKE_READ, KeyScope.MANAGE}


@pytest.mark.parametrize(
    ("options", "scopes"), [([], MANAGES), (["--read-only"], MANAGES - {KeyScope.MANAGE})]
)
def test_the_address_has_a_key_of_one_hour(owner: Owner, options: list[str], scopes: set[KeyScope]) -> None:
    words = ["console", owner.tenant.slug, *options]
    result = CliRunner().invoke(cli.app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    address, _, text = result.stdout.strip().partition("#key=")
    assert address == f"{load_settings().api.linked_url}/console"
    (key,) = keys.list_keys(owner.tenant)
    presented = Presented.parse(text)
    assert presented is not None
    assert presented.opens(key, datetime.now(UTC))
    assert key.scopes == scopes
    assert key.expires_at is not None
    assert timedelta() < key.expires_at - key.created_at <= timedelta(hours=1, seconds=1)
    assert text not in result.stderr


def test_the_json_of_the_console_command_names_the_key(owner: Owner) -> None:
    words = ["console", owner.tenant.slug, "--expires-in", "5m", "--json"]
    document = json.loads(CliRunner().invoke(cli.app, words, catch_exceptions=False).stdout)
    (key,) = keys.list_keys(owner.tenant)
    assert (document["key_id"], set(document)) == (key.key_id, {"address", "key_id", "expires_at"})
