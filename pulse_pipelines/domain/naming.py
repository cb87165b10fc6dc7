"""Display names of tenants, datasets and keys: no characters that control terminals or text direction."""

import re

from pulse_resources.errors import UserError

MAX_NAME = 200
STEERING = "\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069"
"""Members of a regex character class: characters that control a terminal, a line, or the text direction."""
NAME_PATTERN = f"^[^{STEERING}]+$"
_NAME = re.compile(f"[^{STEERING}\ud800-\udfff]{{1,{MAX_NAME}}}")


def check_name(kind: str, name: str) -> str:
    """Check a display name; returns it.

    Raises:
        UserError: it is empty, too long, or has control characters.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name[:MAX_NAME]!a} is not a valid name for a {kind}",
            fix=f"Use 1 to {MAX_NAME} characters, without control characters and marks of text direction",
        )
    return name
