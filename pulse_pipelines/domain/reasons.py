"""Reasons of dead letters: a closed list, with advice for each.

A new reason is an entry here, and a row in docs/reasons.md; a test compares the two.
"""

from enum import StrEnum


class Reason(StrEnum):
    """Why an event became a dead letter."""

    advice: str
    """What to do about it, for people."""
    is_decoded: bool
    """Whether events with this reason are known to be JSON."""

    def __new__(cls, value: str, advice: str = "", is_decoded: bool = True) -> "Reason":
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.advice = advice
        reason.is_decoded = is_decoded
        return reason

    UNDECODABLE = "undecodable", "Fix the sender", False
    OVERSIZE = "oversize", "Send a reference to the large part, or raise ingest.max_event_bytes", False
    TOO_DEEP = "too_deep", "Flatten it", False
    NUL_CHARACTER = "nul_character", "Strip the character"
    INTEGER_OUT_OF_RANGE = "integer_out_of_range", "Send it as a string"
    INVALID_ENVELOPE = "invalid_envelope", "Fix the sender"
    WRONG_TENANT = "wrong_tenant", "Look for a mix-up of keys or topics"
    MISSING_DATASET = "missing_dataset", "Fix the sender"
    UNKNOWN_DATASET = "unknown_dataset", "Create the dataset, then replay"
    UNKNOWN_SCHEMA_VERSION = "unknown_schema_version", "Move the dataset to that version, then replay"
    INVALID_TIMESTAMP = "invalid_timestamp", "Fix the sender"
    TIMESTAMP_OUT_OF_RANGE = (
        "timestamp_out_of_range",
        "Correct the sender's clock, or widen the settings, then replay",
    )
    SCHEMA_VIOLATION = (
        "schema_violation",
        "Fix the sender; or publish a schema version that accepts it, move the dataset to it, then replay",
    )
    TOO_EXPENSIVE = (
        "too_expensive",
        "Send smaller events, or publish a schema that costs less (fewer numbers in an enum, "
        "shorter patterns), then replay",
    )
    PROCESSING_FAILED = (
        "processing_failed",
        "Look at the event as bytes; change it at its sender, or replay it once Pulse can process it",
        False,
    )
    UNREPRESENTABLE = "unrepresentable", "Fix the sender"
    LANDING_FAILED = (
        "landing_failed",
        "See the detail: repair the table, or create the dataset again where it was deleted, then replay",
    )
    OVER_QUOTA = "over_quota", "Ask the operator for more, or wait for the next month, then replay"
