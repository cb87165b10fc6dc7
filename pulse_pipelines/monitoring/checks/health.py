"""Check `file_health`: a table has few enough snapshots, manifests and small files to stay fast."""

from collections import Counter
from datetime import timedelta

from pyiceberg.manifest import ManifestContent

from pulse_pipelines.domain.moments import EPOCH_DAY
from pulse_pipelines.monitoring.checks.subject import CheckResult, Subject
from pulse_resources.settings import load_settings


def file_health(subject: Subject) -> CheckResult:
    """Check the number of snapshots, manifests and delete files and, of whole tables, small files per day."""
    limits, result = load_settings().checks, CheckResult(grave=False)
    snapshots, manifests = len(subject.table.metadata.snapshots), len(subject.manifests)
    deletes = sum(m.content is ManifestContent.DELETES for m in subject.manifests)
    result.numbers |= {"most_snapshots": snapshots, "most_manifests": manifests}
    result.numbers |= {"delete_manifests": deletes}
    if snapshots > limits.max_snapshots:
        result.problems.append(f"{snapshots} snapshots, more than {limits.max_snapshots}: expire them")
    if manifests > limits.max_manifests:
        result.problems.append(
            f"{manifests} manifests, more than {limits.max_manifests}: rewrite the manifests"
        )
    if deletes:
        result.problems.append(f"{deletes} manifests of delete files, which Pulse never writes")
    if subject.scope.batch_id is None:
        _small_files(subject, result)
    return result


def _small_files(subject: Subject, result: CheckResult) -> None:
    limits = load_settings().checks
    per_day = Counter(
        file.partition[0] for file in subject.files if file.file_size_in_bytes < limits.small_file_bytes
    )
    result.numbers |= {
        "files": len(subject.files),
        "bytes": sum(file.file_size_in_bytes for file in subject.files),
        "small_files": per_day.total(),
        "most_small_files_in_a_day": max(per_day.values(), default=0),
    }
    over = [(day, count) for day, count in per_day.most_common() if count > limits.max_small_files_per_day]
    if over:
        day, count = over[0]
        when = "no day" if day is None else EPOCH_DAY + timedelta(days=day)
        result.problems.append(
            f"{len(over)} days have more than {limits.max_small_files_per_day} small files, "
            f"{when} has {count}: compact them"
        )
