"""`reconciled`: a table has as many rows as its ledger says, and the ledger ends where the positions are.

That is cheap: it reads no data file. Offset by offset, `monitoring.reconcile` proves a whole history.
"""

from collections.abc import Iterable

from pyiceberg.manifest import ManifestContent

from pulse_pipelines.monitoring.checks.subject import Finding, Subject
from pulse_pipelines.monitoring.reconcile import Problem, TenantReport


def reconciled(subject: Subject) -> Finding:
    """Rows by the manifests against rows by the ledger; positions against the ranges that settled."""
    data = [m for m in subject.manifests if m.content is ManifestContent.DATA]
    rows = sum((m.added_rows_count or 0) + (m.existing_rows_count or 0) for m in data)
    finding = Finding({"rows_in_tables": rows, "rows_by_ledger": subject.landed})
    if rows != subject.landed:
        finding.problems.append(
            f"the table has {rows} rows, the ledger says {subject.landed}: {rows - subject.landed:+}"
        )
    if len(data) < len(subject.manifests):
        finding.problems.append("the table has delete files, which Pulse never writes: rows are gone")
    for partition, settled, end in subject.ends:
        if settled != end:
            finding.problems.append(
                f"partition {partition} is settled up to {settled}, its ledger ends at {end}"
            )
    return finding


def proven(slug: str, report: TenantReport) -> Finding:
    """What the proof of a whole tenant says to one of its datasets; what is of no single one, to all."""
    finding = Finding({"tenants_proven": 1, "offsets_proven": report.drained})
    finding.problems.extend(_sentences(p for p in report.problems if _concerns(slug, p)))
    return finding


def _concerns(slug: str, problem: Problem) -> bool:
    where = problem.where
    return not where.startswith("dataset ") or where.startswith((f"dataset {slug}:", f"dataset {slug},"))


def _sentences(problems: Iterable[Problem]) -> Iterable[str]:
    for problem in problems:
        shown = f", such as offsets {', '.join(map(str, problem.offsets))}" if problem.offsets else ""
        fix = f"; {problem.fix}" if problem.fix else ""
        yield f"{problem.count} {problem.kind} at {problem.where}{shown}{fix}"
