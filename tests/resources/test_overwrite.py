"""Files of several manifests are removed at once, whatever threads meet in them."""

from datetime import date
from types import SimpleNamespace
from typing import Any

from pyiceberg.table.snapshots import Operation
from support.ingest import Owner
from support.lake import table

from pulse_pipelines.tables.file_metrics import data_file
from pulse_pipelines.tables.written_files import Metrics
from pulse_resources import iceberg
from pulse_resources.iceberg.overwrite import Overwrite

NOTHING = Metrics({}, {}, {}, {}, {}, {}, ())


def test_no_file_counts_as_missing_by_the_bounds_of_another_manifest(owner: Owner) -> None:
    """pyiceberg's threads share an evaluator, which remembers the manifest that was looked at last."""
    name, current = (owner.tenant.namespace, "orders"), table(owner)
    for day in (1, 2, 3):
        added = data_file(f"{current.location()}/{day}.parquet", date(2026, 1, day), 1, 1, NOTHING)
        current = iceberg.load_table(name, iceberg.stage_append(current, [added], {}).new)
    files = {task.file.file_path: task.file for task in current.scan().plan_files()}
    snapshot = current.current_snapshot()
    assert snapshot
    of_first, of_second, of_third = sorted(snapshot.manifests(current.io), key=lambda m: m.sequence_number)

    class Meanwhile(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            assert not evaluate(of_third)  # in another thread, say
            return super().__getitem__(index)

    with current.transaction() as transaction:
        overwrite = Overwrite(Operation.OVERWRITE, transaction, current.io)
        for day in (1, 2):
            overwrite.delete_data_file(files[f"{current.location()}/{day}.parquet"])
        overwrite._build_delete_files_partition_predicate()
        evaluate = overwrite._build_manifest_evaluator(0)
        for manifest in (of_first, of_second):
            observed: Any = SimpleNamespace(partitions=Meanwhile(manifest.partitions))
            assert evaluate(observed)
