"""The reasons of dead letters: one entry each, and docs/reasons.md says the same."""

import re
from pathlib import Path

from pulse_pipelines.domain.reasons import Reason

PAGE = Path(__file__).parents[2] / "docs" / "reasons.md"


def test_the_page_has_a_row_for_each_reason_with_its_advice() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [(reason.value, reason.advice) for reason in Reason]
