"""Run checks over many tenants' datasets; what is the same for all datasets of a tenant is looked at once."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar
from uuid import UUID

import psycopg

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.monitoring.checks import freshness
from pulse_pipelines.monitoring.checks.conformance import schema_conformance
from pulse_pipelines.monitoring.checks.health import file_health
from pulse_pipelines.monitoring.checks.isolation import tenant_isolation
from pulse_pipelines.monitoring.checks.latest import latest_equals_log
from pulse_pipelines.monitoring.checks.reconciled import proven, reconciled
from pulse_pipelines.monitoring.checks.subject import Finding, Scope, Subject, load
from pulse_pipelines.monitoring.reconcile import TenantReport, reconcile_tenant
from pulse_resources import outages, readable
from pulse_resources.errors import Terminal

TABLE_CHECKS: Mapping[str, Callable[[Subject], Finding]] = {
    "tenant_isolation": tenant_isolation,
    "schema_conformance": schema_conformance,
    "reconciled": reconciled,
    "file_health": file_health,
    "latest_equals_log": latest_equals_log,
}
"""Checks of one table."""
T = TypeVar("T")
CHECKS = (*TABLE_CHECKS, "freshness")


@dataclass
class Outcome:
    """What one check found of a slug."""

    findings: dict[str, Finding] = field(default_factory=dict)
    """By tenant."""
    seconds: float = 0.0
    """That it took; loading the tables counts for the check that came first."""

    @property
    def numbers(self) -> dict[str, int | float]:
        """Of all tenants together."""
        total: dict[str, int | float] = {}
        for finding in self.findings.values():
            for name, value in finding.numbers.items():
                largest = name.startswith(("most_", "longest_"))
                total[name] = max(total.get(name, 0), value) if largest else total.get(name, 0) + value
        return total

    @property
    def problems(self) -> list[tuple[str, str]]:
        """(tenant, problem), those of errors first."""
        ordered = sorted(self.findings.items(), key=lambda item: not item[1].grave)
        return [(tenant, problem) for tenant, finding in ordered for problem in finding.problems]

    @property
    def grave(self) -> bool:
        return any(finding.grave for finding in self.findings.values() if finding.problems)


class Inspection:
    """A round of checks in one scope.

    Args:
        scope: how much of each table is looked at.
        prove: tenants of which every offset is accounted for, once in the round; None: all.
    """

    def __init__(self, scope: Scope, prove: Collection[Tenant] | None = ()) -> None:
        self._scope = scope
        self._prove = None if prove is None else set(prove)
        self._reports: dict[UUID, TenantReport] = {}

    def of(self, slug: str, tenants: Sequence[Tenant]) -> dict[str, Outcome]:
        """All checks of the datasets that these tenants have under a slug, by name.

        A table that cannot be read is a finding, not an error.

        Raises:
            Transient: the object store does not answer.
            psycopg.OperationalError: Postgres does not.
        """
        outcomes = {name: Outcome() for name in CHECKS}
        for tenant in tenants:
            self._tables(slug, tenant, outcomes)
            with _timed(outcomes["freshness"]):
                found = self._lateness.get(tenant.tenant_id, Finding())
                outcomes["freshness"].findings[tenant.slug] = found
        return outcomes

    def _tables(self, slug: str, tenant: Tenant, outcomes: Mapping[str, Outcome]) -> None:
        with _timed(outcomes[next(iter(TABLE_CHECKS))]):
            subject = _or_problem(load, tenant, slug, self._scope)
        for name, check in TABLE_CHECKS.items():
            with _timed(outcomes[name]):
                finding = subject if isinstance(subject, Finding) else _or_problem(_checked, check, subject)
                if name == "reconciled" and (self._prove is None or tenant in self._prove):
                    finding = _together(finding, _or_problem(self._proven, slug, tenant))
            outcomes[name].findings[tenant.slug] = finding

    def _proven(self, slug: str, tenant: Tenant) -> Finding:
        if tenant.tenant_id not in self._reports:
            self._reports[tenant.tenant_id] = reconcile_tenant(tenant)
        return proven(slug, self._reports[tenant.tenant_id])

    @cached_property
    def _lateness(self) -> Mapping[UUID, Finding]:
        return freshness.look(ask_broker=self._scope.batch_id is None)


def run(name: str, tenant: Tenant, slug: str, batch_id: str | None = None) -> Finding:
    """One check of one dataset's table, or of what a batch added to it."""
    subject = _or_problem(load, tenant, slug, Scope(batch_id))
    return subject if isinstance(subject, Finding) else _or_problem(_checked, TABLE_CHECKS[name], subject)


def _checked(check: Callable[[Subject], Finding], subject: Subject) -> Finding:
    look = partial(load, subject.tenant, subject.dataset.slug, subject.scope)
    return readable.as_it_is(check, subject, look, lambda seen: seen.table.metadata_location)


def _or_problem(work: Callable[..., T], *arguments: Any) -> T | Finding:
    try:
        return work(*arguments)
    except Terminal as error:
        return Finding(problems=[str(error)])
    except psycopg.OperationalError:  # nobody's table: there is no ledger to compare with
        raise
    except Exception as error:  # whatever is wrong with one table, the others are looked at
        outages.check()
        return Finding(problems=[f"the table cannot be read: {type(error).__name__}: {error}"])


def _together(one: Finding, other: Finding) -> Finding:
    return Finding(one.numbers | other.numbers, [*one.problems, *other.problems])


@contextmanager
def _timed(outcome: Outcome) -> Iterator[None]:
    began = time.perf_counter()
    yield
    outcome.seconds += time.perf_counter() - began
