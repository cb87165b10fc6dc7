"""Dead letters: list, replay once their cause is gone, or discard them, in the tenant's own RLS session.

A dead letter is *open* until it is replayed, discarded, landed by a backfill or erased; its row stays in
Postgres in any case, because it accounts for its offset.
"""

from pulse_pipelines.dead_letters.discard import discard as discard
from pulse_pipelines.dead_letters.letters import (
    DeadLetter as DeadLetter,
    Filter as Filter,
    LetterGroup as LetterGroup,
    Opened as Opened,
    Page as Page,
    ReasonCount as ReasonCount,
    dead_letters_of as dead_letters_of,
    find_dead_letter as find_dead_letter,
    groups as groups,
    list_dead_letters as list_dead_letters,
    summary as summary,
)
from pulse_pipelines.dead_letters.replay import replay as replay
from pulse_pipelines.dead_letters.verdicts import (
    SHOWN as SHOWN,
    UNRESOLVED as UNRESOLVED,
    DeadLetterOutcome as DeadLetterOutcome,
    Result as Result,
    Verdict as Verdict,
)
