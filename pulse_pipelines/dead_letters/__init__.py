"""Dead letters: list, replay once their cause is gone, or discard them, in the tenant's own RLS session.

A dead letter is *open* until it is replayed, discarded, landed by a backfill or erased; its row stays in
Postgres in any case, because it accounts for its offset.
"""

from pulse_pipelines.dead_letters.discard import discard
from pulse_pipelines.dead_letters.letters import (
    DeadLetter,
    Filter,
    LetterGroup,
    Opened,
    Page,
    ReasonCount,
    dead_letters_of,
    find_dead_letter,
    groups,
    list_dead_letters,
    summary,
)
from pulse_pipelines.dead_letters.replay import replay
from pulse_pipelines.dead_letters.verdicts import SHOWN, UNRESOLVED, DeadLetterOutcome, Result, Verdict

__all__ = [
    "SHOWN",
    "UNRESOLVED",
    "DeadLetter",
    "DeadLetterOutcome",
    "Filter",
    "LetterGroup",
    "Opened",
    "Page",
    "ReasonCount",
    "Result",
    "Verdict",
    "dead_letters_of",
    "discard",
    "find_dead_letter",
    "groups",
    "list_dead_letters",
    "replay",
    "summary",
]
