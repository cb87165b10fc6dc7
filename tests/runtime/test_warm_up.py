"""Warm-up: Spark's first job is not the first batch's."""

import pytest

from chaos.surroundings import with_settings
from pulse_pipelines.runtime.warm_up import warm_up
from pulse_resources.settings import Settings


def test_every_task_of_a_batch_has_run(stack: Settings) -> None:
    assert warm_up() == stack.spark.parallelism


def test_a_failed_warm_up_is_logged_without_secrets(
    stack: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with with_settings(SPARK__REMOTE="sc://127.0.0.1:9/;authorization=Bearer%20hidden"):
        assert warm_up() == 0
    (message,) = caplog.messages
    assert "Spark at sc://127.0.0.1:9 was not warmed up" in message
    assert "hidden" not in message
