"""The names by which the control room may be asked for, without Dagster behind it."""

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from pulse_pipelines.defs.control_room.guard import HEALTH, Guard
from pulse_resources.settings.api_settings import DagsterSettings

SETTINGS = DagsterSettings(
    host="0.0.0.0",  # noqa: S104 - nothing listens here
    public_url="https://Pulse.example:8443/dagster",
    allowed_hosts=["control"],
)


@pytest.mark.parametrize(
    ("status", "host"),
    [(200, "pulse.example:8443"), (200, "pulse.example"), (200, "control:3000"), (421, "evil.example")],
)
def test_the_name_that_links_in_alerts_have_is_known(status: int, host: str) -> None:
    client = TestClient(Guard(PlainTextResponse("Dagster"), SETTINGS))
    assert client.get(HEALTH, headers={"Host": host}).status_code == status
