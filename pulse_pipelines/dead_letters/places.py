"""Places: letters that were over the quota are replayed as far as this month has room for them by now."""

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
    """Of one replay, page after page.

    What is published takes its place together with its letter's mark, so that the next replay, and whoever
    collects, know of it before it lands. Where two take the same place at one moment, the gate sets aside
    what has none. Letters with another reason have the place that the front door gave them, or get
    one at the gate.
    """

    def __init__(self, tenant: Tenant, *, dry_run: bool) -> None:
        self._tenant = tenant
        self._dry_run = dry_run
        self._promised = 0

    def admit(self, connection: postgres.Connection, page: Sequence[Revalidated]) -> list[Revalidated]:
        """The page; what could land and finds no room is rejected.

        Args:
            connection: in the tenant's session, as pulse_api.
        """
        maximum = quotas.records_per_month(connection)
        if not limited(maximum) or not any(map(_released, page)):
            return list(page)
        room = maximum - intake.taken(connection) - self._promised
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
        """Take the places of what was published, in the transaction that marks its letters."""
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
