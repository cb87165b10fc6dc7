"""Discarding: close dead letters without landing them."""

from collections.abc import Sequence

from pulse_pipelines.dead_letters.letters import Filter
from pulse_pipelines.dead_letters.selection import resolve, select
from pulse_pipelines.dead_letters.verdicts import DeadLetterOutcome, Progress, Result, Tally, Verdict
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres


def discard(
    tenant: Tenant,
    chosen: Filter | Sequence[str],
    *,
    dry_run: bool = False,
    limit: int | None = None,
    after: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Discard the tenant's open dead letters with the ids, or that match the filter, of `chosen`.

    Their rows stay, with their payloads: reconciliation counts them.

    Args:
        dry_run: only report which letters would be discarded.
        limit: maximum number of letters of a filter; pass the result's `next` as `after` to continue.

    Raises:
        NotFound: no such cursor.
    """
    selection, tally = select(chosen, limit, after), Tally(progress)
    while True:
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
            page = selection.page(connection, 0, lock=not dry_run)
            if page is None:
                return tally.result(selection.next, dry_run=dry_run)
            letters = [opened.letter for opened in page.letters]
            if not dry_run:
                resolve(connection, "discarded", letters)
        discarded = (
            Verdict(letter.letter_id, DeadLetterOutcome.DISCARDED, letter.dataset, letter.event_id)
            for letter in letters
        )
        tally.add([*page.verdicts, *discarded])
