"""Sessions of Spark: what one that has ended still does."""

import gc
import threading

from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator

from pulse_resources import spark
from pulse_resources.settings import Settings


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
    submits.join(20)
    assert not submits.is_alive(), "the collector waits for a lock that its own thread holds"
