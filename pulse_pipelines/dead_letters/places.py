"""Quota places: letters that were over the quota are replayed as far as this month's quota has room."""

from collections.abc import Sequence
from dataclasses import replace

from pulse_pipelines.dead_letters.revalidation import Revalidated
from pulse_pipelines.dead_letters.verdicts import DeadLetterOutcome
from pulse_pipelines.domain.quota import limited
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry import intake, quotas
from pulse_resources import postgres


class Places:
    """Admits the letters of one replay to the monthly quota, page by page.

    A published event takes its place in the transaction that marks its letter, so that the next replay and
    the API count it before it lands. If two concurrent callers take the same place, the dedup gate makes the
    event without one a dead letter again. Letters with another reason have the place that the API reserved,
    or get one at the gate.
    """

    def __init__(self, tenant: Tenant, *, dry_run: bool) -> None:
        self._tenant = tenant
        self._dry_run = dry_run
        self._promised = 0

    def admit(self, connection: postgres.Connection, page: Sequence[Revalidated]) -> list[Revalidated]:
        """Reject those letters of a page that could land but exceed the quota; returns the page.

        Args:
            connection: in the tenant's session, as pulse_api.
        """
        maximum = quotas.records_per_month(connection)
        if not limited(maximum) or not any(map(_released, page)):
            return list(page)
        room = maximum - intake.places_used(connection) - self._promised
        admitted = []
        for checked in page:
            if _released(checked):
                room -= 1
                checked = checked if room >= 0 else _rejected(checked, maximum)
            admitted.append(checked)
        if self._dry_run:
            self._promised += sum(map(_released, admitted))
        return admitted

    def take(self, connection: postgres.Connection, page: Sequence[Revalidated]) -> None:
        """Take the places of the published events, in the transaction that marks their letters."""
        count = sum(checked.letter.reason == Reason.OVER_QUOTA for checked in page if _published(checked))
        maximum = quotas.records_per_month(connection)
        if count and limited(maximum):
            intake.take(connection, self._tenant, count, maximum)


def _released(checked: Revalidated) -> bool:
    return (
        checked.letter.reason == Reason.OVER_QUOTA and checked.verdict.outcome is DeadLetterOutcome.WOULD_LAND
    )


def _published(checked: Revalidated) -> bool:
    return checked.verdict.outcome is DeadLetterOutcome.PUBLISHED


def _rejected(checked: Revalidated, maximum: int) -> Revalidated:
    why = f"this month has no place left for it: {maximum:,} records per month, whichever way they come"
    verdict = replace(
        checked.verdict, outcome=DeadLetterOutcome.REJECTED, reason=Reason.OVER_QUOTA.value, detail=why
    )
    return replace(checked, verdict=verdict)
