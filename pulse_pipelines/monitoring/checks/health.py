"""`file_health`: a table does not get slow to read or to commit to."""

from collections import Counter
from datetime import date, timedelta

from pyiceberg.manifest import ManifestContent

from pulse_pipelines.monitoring.checks.subject import Finding, Subject
from pulse_resources.settings import load_settings

_EPOCH = date(1970, 1, 1)


def file_health(subject: Subject) -> Finding:
    """Snapshots, manifests and delete files, and, where whole tables are looked at, small files per day."""
    limits, finding = load_settings().checks, Finding(grave=False)
    snapshots, manifests = len(subject.table.metadata.snapshots), len(subject.manifests)
    deletes = sum(m.content is ManifestContent.DELETES for m in subject.manifests)
    finding.numbers |= {"most_snapshots": snapshots, "most_manifests": manifests}
    finding.numbers |= {"delete_manifests": deletes}
    if snapshots > limits.max_snapshots:
        finding.problems.append(f"{snapshots} snapshots, more than {limits.max_snapshots}: expire them")
    if manifests > limits.max_manifests:
        finding.problems.append(
            f"{manifests} manifests, more than {limits.max_manifests}: rewrite the manifests"
        )
    if deletes:
        finding.problems.append(f"{deletes} manifests of delete files, which Pulse never writes")
    if subject.scope.batch_id is None:
        _small_files(subject, finding)
    return finding


def _small_files(subject: Subject, finding: Finding) -> None:
    limits = load_settings().checks
    per_day = Counter(
        file.partition[0] for file in subject.files if file.file_size_in_bytes < limits.small_file_bytes
    )
    finding.numbers |= {
        "files": len(subject.files),
        "bytes": sum(file.file_size_in_bytes for file in subject.files),
        "small_files": per_day.total(),
        "most_small_files_in_a_day": max(per_day.values(), default=0),
    }
    over = [(day, count) for day, count in per_day.most_common() if count > limits.max_small_files_per_day]
    if over:
        day, count = over[0]
        when = "no day" if day is None else _EPOCH + timedelta(days=day)
        finding.problems.append(
            f"{len(over)} days have more than {limits.max_small_files_per_day} small files, "
            f"{when} has {count}: compact them"
        )
