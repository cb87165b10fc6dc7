"""End of an episode: everything begun is completed, as operators would, and checked.

It is checked once as it is, and again after every dead letter was replayed and days were rebuilt, computed
and compacted: none of that may lose data.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from chaos import batches, oracle
from chaos.operators import erasures, invariants, liveness
from chaos.operators.events import DAYS, SLUGS
from chaos.operators.evidence import Evidence
from chaos.operators.processes import Ended
from chaos.operators.schedule import EVERYONE, Step
from chaos.operators.world import World
from chaos.oracle import Finding
from pulse_pipelines.ingest import attempts, plan as planning
from pulse_pipelines.monitoring.reconcile import TenantReport, reconcile_tenant
from pulse_resources.errors import PulseError

TRIES = 8
"""Attempts at a command that was refused while other work went on."""
DRAINS = 12
"""Maximum rounds of batches until nothing waits."""
UPKEEPS = 4
"""Maximum runs of upkeep: one may cause the next."""
REBUILT = 3
"""Days to rebuild, of all tenants together."""


class Closing:
    """Completes and checks an episode.

    Args:
        worlds: its tenants.
        command: carries a step out.
    """

    def __init__(self, worlds: Sequence[World], command: Callable[[Step], Ended]) -> None:
        self.findings: list[Finding] = []
        self._worlds, self._command = worlds, command

    def run(self, owed: Sequence[Step]) -> None:
        """Complete everything and check it.

        Args:
            owed: killed commands that are not repeated yet.
        """
        for step in owed:
            self._until_done(replace(step, after_s=0.0, blow=None))
        self.drain()
        self.findings += find_violations(self._worlds, last=False)
        if self.findings:  # later steps would hide the cause
            return
        numbers = range(len(self._worlds))
        for number in numbers:
            self._until_done(Step("replay", number, {"slug": None, "version": None, "limit": None}))
        self.drain()
        every = [(number, slug, day) for slug in SLUGS for day in range(DAYS) for number in numbers]
        for number, slug, day in every[:: max(1, len(every) // REBUILT)]:
            if not self._worlds[number].retained and slug in self._worlds[number].rounds.ends[-1][1]:
                self._until_done(Step("backfill", number, {"slug": slug, "day": day, "version": None}))
        self._until_done(Step("curate", EVERYONE))
        for _ in range(UPKEEPS):
            self._until_done(Step("upkeep", EVERYONE))
            if not any(liveness.pending_tasks(world) for world in self._worlds):
                break
        self.findings += find_violations(self._worlds, last=True)

    def _until_done(self, step: Step) -> None:
        for _ in range(TRIES):
            ended = self._command(step)
            if ended.how != "refused" or ended.why != "Transient":
                break
        if ended.how not in ("done", "refused") or ended.why == "Transient":
            self._find("a command that does not come to its end", str(ended))

    def drain(self) -> None:
        """Run batches until everything is settled, and publish overdue dead letters."""
        tenant_ids = {world.tenant.tenant_id for world in self._worlds}
        for _ in range(DRAINS):
            ended = self._command(Step("ingest", EVERYONE))
            status = planning.ingest_status()
            alarms = [alarm for alarm in status.alarms if alarm.tenant.tenant_id in tenant_ids]
            if not alarms and not any(status.lag.get(tenant, 1) for tenant in tenant_ids):
                break
        else:
            waiting = {b.batch_id: b.last_error for b in attempts.open_batches()}
            self._find("events that do not settle", f"{ended}; alarms: {alarms}; open batches: {waiting}")
        batches.publish_overdue()
        for world in self._worlds:
            world.archive()
            world.record_round()

    def _find(self, kind: str, detail: str) -> None:
        self.findings.append(Finding(kind, "all", detail))


def find_violations(worlds: Sequence[World], *, last: bool) -> list[Finding]:
    """Violated invariants of tenants without waiting events.

    Args:
        last: all days must be computed and all tables compacted by now.
    """
    findings: list[Finding] = []
    evidence: dict[str, Evidence] = {}
    for world in worlds:
        slug = world.tenant.slug
        try:
            tenant_evidence = evidence[slug] = Evidence.of(world.tenant)
            violations = invariants.find_violations(world, tenant_evidence)
            findings += erasures.find_violations(world, tenant_evidence)
        except (OSError, PulseError) as error:
            violations = [Finding("a table that cannot be read", slug, str(error))]
        findings += [*violations, *disagreement(reconcile_tenant(world.tenant), violations)]
    findings += oracle.by_file({slug: tenant_evidence.lake for slug, tenant_evidence in evidence.items()})
    return findings + (liveness.find_violations(worlds, evidence) if last else [])


def disagreement(report: TenantReport, violations: Sequence[Finding]) -> list[Finding]:
    """Check that reconciliation reports balance exactly when the oracle finds nothing."""
    if report.balanced is not bool(violations):
        return []
    says = "balanced" if report.balanced else f"not balanced: {report.problems}"
    return [Finding("reconcile differs from the oracle", report.tenant, f"it says {says}")]
