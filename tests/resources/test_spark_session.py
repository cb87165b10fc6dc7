"""Sessions of Spark: what one that has ended still does."""

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator

from chaos.waiting import PATIENCE_S
from pulse_pipelines.pipes import progress
from pulse_resources import spark, spark_code
from pulse_resources.errors import Transient
from pulse_resources.settings import Settings

MARKED = "pulse_pipelines/ingest/drain.py"
MARK = b'\nCODE = "the session\'s"\n'


def test_a_session_is_collected_while_the_lock_of_the_release_pool_is_held(stack: Settings) -> None:
    """As it happens when the collector runs while a result's release is submitted to the pool."""
    with spark.session() as dropped:
        assert dropped.range(3).count() == 3
    ring = [dropped]
    ring.append(ring)  # type: ignore[arg-type]
    pool = ExecutePlanResponseReattachableIterator._get_or_create_release_thread_pool()
    del dropped, ring

    def submit() -> None:
        with pool._shutdown_lock:  # type: ignore[attr-defined]
            gc.collect()

    submits = threading.Thread(target=submit, daemon=True)
    submits.start()
    submits.join(PATIENCE_S)
    assert not submits.is_alive(), "the collector waits for a lock that its own thread holds"


@pytest.mark.parametrize("versions", ["one", "two"])
def test_tasks_have_the_code_of_the_session_that_runs_them(
    versions: str, stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two, as during an upgrade: the server's workers have loaded another version."""
    sources = [(name, source + MARK if name == MARKED else source) for name, source in spark_code._sources()]
    if versions == "two":
        monkeypatch.setattr(spark_code, "_sources", lambda: iter(sources))

    def code(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pulse_pipelines.ingest import drain

        for _ in batches:
            yield pa.record_batch([pa.array([getattr(drain, "CODE", "the server's")])], names=["code"])

    spark_code.digest.cache_clear()
    spark_code.archive.cache_clear()
    try:
        with spark.session() as session:
            (row,) = session.range(1).mapInArrow(code, "code string").collect()
    finally:
        monkeypatch.undo()
        spark_code.digest.cache_clear()
        spark_code.archive.cache_clear()
    assert row.code == ("the session's" if versions == "two" else "the server's")


def test_only_dagster_gets_a_task_s_error_with_its_pipe_tenant_and_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "logs" / "spark.log"
    log.parent.mkdir()
    log.touch()
    monkeypatch.setenv("PULSE_HOME", str(tmp_path))
    errors: list[Exception] = []

    @dg.op
    def fails(context: dg.OpExecutionContext) -> None:
        try:
            with spark.noted("Run it again", pipe="planes", tenant="acme"):
                raise PythonException("In a worker.\nValueError: 1\n")
        except PythonException as error:
            errors.append(error)
            raise

    @dg.job
    def job() -> None:
        fails()

    for place in (log, "that of Spark at sc://127.0.0.1:"):
        failed = job.execute_in_process(raise_on_error=False).failure_data_for_node("fails")
        assert failed is not None
        assert failed.error is not None
        assert failed.error.cause is not None
        message = failed.error.cause.message
        assert f"This was pipe planes, tenant acme. The log of its tasks: {place}" in message
        assert "Run it again." in message
        assert "log of its tasks" not in str(errors[-1])
        assert str(tmp_path) not in progress.error_text(errors[-1])
        log.unlink(missing_ok=True)


def test_an_error_of_pulse_s_own_names_no_log_of_spark() -> None:
    with pytest.raises(Transient) as caught, spark.noted("Run it again", tenant="acme"):
        raise Transient("the source does not answer")
    assert caught.value.__notes__ == ["This was tenant acme. Run it again."]
    assert str(caught.value) == "the source does not answer"
