"""Check `reconciled`: row counts match the ledger, and the ledger ends at the settled positions.

It reads no data file. `monitoring.reconcile` proves a whole history, offset by offset.
"""

from collections.abc import Iterable

from pyiceberg.manifest import ManifestContent

from pulse_pipelines.monitoring.checks.subject import CheckResult, Subject
from pulse_pipelines.monitoring.reconcile import Problem, TenantReport


def reconciled(subject: Subject) -> CheckResult:
    """Compare manifest row counts with the ledger, and positions with the settled ranges."""
    data = [m for m in subject.manifests if m.content is ManifestContent.DATA]
    rows = sum((m.added_rows_count or 0) + (m.existing_rows_count or 0) for m in data)
    result = CheckResult({"rows_in_tables": rows, "rows_by_ledger": subject.landed})
    if rows != subject.landed:
        result.problems.append(
            f"the table has {rows} rows, the ledger says {subject.landed}: {rows - subject.landed:+}"
        )
    if len(data) < len(subject.manifests):
        result.problems.append("the table has delete files, which Pulse never writes: rows are gone")
    for partition, settled, end in subject.ends:
        if settled != end:
            result.problems.append(
                f"partition {partition} is settled up to {settled}, its ledger ends at {end}"
            )
    return result


def proven(slug: str, report: TenantReport) -> CheckResult:
    """Result of a tenant's reconciliation for one dataset; problems of no single dataset go to all."""
    result = CheckResult({"tenants_proven": 1, "offsets_proven": report.drained})
    result.problems.extend(_sentences(p for p in report.problems if _concerns(slug, p)))
    return result


def _concerns(slug: str, problem: Problem) -> bool:
    where = problem.where
    return not where.startswith("dataset ") or where.startswith((f"dataset {slug}:", f"dataset {slug},"))


def _sentences(problems: Iterable[Problem]) -> Iterable[str]:
    for problem in problems:
        shown = f", such as offsets {', '.join(map(str, problem.offsets))}" if problem.offsets else ""
        fix = f"; {problem.fix}" if problem.fix else ""
        yield f"{problem.count} {problem.kind} at {problem.where}{shown}{fix}"
