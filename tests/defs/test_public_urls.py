"""Links lead to where people reach the API and the UI, which a container cannot know of itself."""

import pytest
from pydantic import ValidationError

from pulse_pipelines.defs.alerts import runs
from pulse_resources.settings import Settings
from pulse_resources.settings.api_settings import ApiSettings, DagsterSettings


def test_links_lead_to_the_public_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_DAGSTER__PUBLIC_URL", "https://dagster.example.com/pulse")
    monkeypatch.setattr(runs, "load_settings", Settings)
    assert runs._address("r1") == "https://dagster.example.com/pulse/runs/r1"


def test_without_a_public_url_links_lead_to_this_machine() -> None:
    assert ApiSettings(host="0.0.0.0", port=8001).linked_url == "http://127.0.0.1:8001"  # noqa: S104
    assert DagsterSettings(host="10.0.0.7").linked_url == "http://10.0.0.7:3000"


@pytest.mark.parametrize("url", ["dagster.example.com", "ftp://x", "https://x/", "https://x?y", "https:// x"])
def test_an_address_that_no_link_can_begin_with_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        ApiSettings(public_url=url)
