"""Why a text is not JSON, in words and with the place, where a decoder gives none."""

import json

_SURROGATE, _TRAILS = 0xED, range(0xA0, 0xC0)
"""First byte of half of a surrogate pair that was written like a character, and the bytes after it."""
_OF_DIGITS = "Exceeds the limit"
_HALF = "half of a surrogate pair, which is not a character"
_CLEARER = {
    "no low surrogate in string": f"the text has {_HALF}",
    "invalid high surrogate in string": f"the text has {_HALF}",
    "number is infinity when parsed as double": "the number is beyond the largest double, 1.8e308",
}
"""Words for those of orjson."""


def clearer(text: bytes | str, error: ValueError) -> ValueError:
    """The error of a decoder of JSON, or a clearer one, if it is about UTF-8 or numbers.

    Args:
        text: what it was given.
        error: of any decoder, such as orjson's, whose place of what is not UTF-8 is always the first.
    """
    content = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    try:
        content.decode()
    except UnicodeDecodeError as wrong:
        byte, follower = content[wrong.start], content[wrong.start + 1 : wrong.start + 2]
        is_half = byte == _SURROGATE and follower and follower[0] in _TRAILS
        fault = _HALF if is_half else f"the byte 0x{byte:02x}"
        before = content[: wrong.start].decode()
        return json.JSONDecodeError(f"it is not UTF-8: {fault}", before, len(before))
    if _OF_DIGITS in str(error):
        return ValueError("it has an integer of more than 4,300 digits")
    if isinstance(error, json.JSONDecodeError) and error.msg in _CLEARER:
        return json.JSONDecodeError(_CLEARER[error.msg], error.doc, error.pos)
    return error
