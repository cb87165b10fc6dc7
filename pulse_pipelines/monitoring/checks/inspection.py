"""Runner of the checks over many tenants' datasets; facts shared by a tenant's datasets are read once."""

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
from pulse_pipelines.monitoring.checks.index import index_equals_log
from pulse_pipelines.monitoring.checks.isolation import tenant_isolation
from pulse_pipelines.monitoring.checks.latest import latest_equals_log
from pulse_pipelines.monitoring.checks.latest_results import save
from pulse_pipelines.monitoring.checks.reconciled import proven, reconciled
from pulse_pipelines.monitoring.checks.state import state_equals_table
from pulse_pipelines.monitoring.checks.subject import CheckResult, Scope, Subject, load
from pulse_pipelines.monitoring.reconcile import TenantReport, reconcile_tenant
from pulse_resources import outages
from pulse_resources.errors import Terminal
from pulse_resources.iceberg import readable

TABLE_CHECKS: Mapping[str, Callable[[Subject], CheckResult]] = {
    "tenant_isolation": tenant_isolation,
    "schema_conformance": schema_conformance,
    "reconciled": reconciled,
    "file_health": file_health,
    "latest_equals_log": latest_equals_log,
    "index_equals_log": index_equals_log,
    "state_equals_table": state_equals_table,
}
"""Checks of one table."""
T = TypeVar("T")
CHECKS = (*TABLE_CHECKS, "freshness")


@dataclass
class CheckSummary:
    """Results of one check for a slug."""

    results: dict[str, CheckResult] = field(default_factory=dict)
    """Results by tenant."""
    seconds: float = 0.0
    """Duration; the first check includes loading the tables."""

    @property
    def numbers(self) -> dict[str, int | float]:
        """Numbers summed over all tenants; the largest of `most_...` and `longest_...`."""
        total: dict[str, int | float] = {}
        for result in self.results.values():
            for name, value in result.numbers.items():
                largest = name.startswith(("most_", "longest_"))
                total[name] = max(total.get(name, 0), value) if largest else total.get(name, 0) + value
        return total

    @property
    def problems(self) -> list[tuple[str, str]]:
        """(tenant, problem), errors first."""
        ordered = sorted(self.results.items(), key=lambda item: not item[1].grave)
        return [(tenant, problem) for tenant, result in ordered for problem in result.problems]


class Inspection:
    """A round of checks in one scope.

    Args:
        scope: how much of each table is checked.
        prove: tenants to reconcile offset by offset, once per round; None: all.
    """

    def __init__(self, scope: Scope, prove: Collection[Tenant] | None = ()) -> None:
        self._scope = scope
        self._prove = None if prove is None else set(prove)
        self._reports: dict[UUID, TenantReport] = {}

    def of(self, slug: str, tenants: Sequence[Tenant]) -> dict[str, CheckSummary]:
        """Run all checks on the datasets that these tenants have under a slug; results by check.

        The tenants' latest results are recorded. A table that cannot be read is a problem in the result, not
        an error.

        Raises:
            Transient: the object store does not answer.
            psycopg.OperationalError: Postgres does not.
        """
        summaries = {name: CheckSummary() for name in CHECKS}
        for tenant in tenants:
            self._tables(slug, tenant, summaries)
            with _timed(summaries["freshness"]):
                lateness = self._lateness.get(tenant.tenant_id, CheckResult())
                summaries["freshness"].results[tenant.slug] = lateness
            results_of_tenant = {name: summary.results[tenant.slug] for name, summary in summaries.items()}
            save(tenant, slug, self._scope, results_of_tenant)
        return summaries

    def _tables(self, slug: str, tenant: Tenant, summaries: Mapping[str, CheckSummary]) -> None:
        with _timed(summaries[next(iter(TABLE_CHECKS))]):
            subject = _or_problem(load, tenant, slug, self._scope)
        for name, check in TABLE_CHECKS.items():
            with _timed(summaries[name]):
                result = (
                    subject if isinstance(subject, CheckResult) else _or_problem(_checked, check, subject)
                )
                if name == "reconciled" and (self._prove is None or tenant in self._prove):
                    result = _combined(result, _or_problem(self._proven, slug, tenant))
            summaries[name].results[tenant.slug] = result

    def _proven(self, slug: str, tenant: Tenant) -> CheckResult:
        if tenant.tenant_id not in self._reports:
            self._reports[tenant.tenant_id] = reconcile_tenant(tenant)
        return proven(slug, self._reports[tenant.tenant_id])

    @cached_property
    def _lateness(self) -> Mapping[UUID, CheckResult]:
        return freshness.check_freshness(ask_broker=self._scope.batch_id is None)


def run(name: str, tenant: Tenant, slug: str, batch_id: str | None = None) -> CheckResult:
    """Run one check on one dataset's table, or on what a batch added to it."""
    subject = _or_problem(load, tenant, slug, Scope(batch_id))
    return subject if isinstance(subject, CheckResult) else _or_problem(_checked, TABLE_CHECKS[name], subject)


def _checked(check: Callable[[Subject], CheckResult], subject: Subject) -> CheckResult:
    load_subject = partial(load, subject.tenant, subject.dataset.slug, subject.scope)
    return readable.as_it_is(check, subject, load_subject, lambda loaded: loaded.table.metadata_location)


def _or_problem(work: Callable[..., T], *arguments: Any) -> T | CheckResult:
    try:
        return work(*arguments)
    except Terminal as error:
        return CheckResult(problems=[str(error)])
    except psycopg.OperationalError:  # not a problem of the table: without the ledger nothing can be compared
        raise
    except Exception as error:  # a failure of one table must not keep the others from being checked
        outages.check()
        return CheckResult(problems=[f"the table cannot be read: {type(error).__name__}: {error}"])


def _combined(one: CheckResult, other: CheckResult) -> CheckResult:
    return CheckResult(one.numbers | other.numbers, [*one.problems, *other.problems])


@contextmanager
def _timed(summary: CheckSummary) -> Iterator[None]:
    began = time.perf_counter()
    yield
    summary.seconds += time.perf_counter() - began
