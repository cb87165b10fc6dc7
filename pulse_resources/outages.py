"""Outage check of shared services, made when one tenant's work has failed."""

import socket

import pyarrow.fs as pafs
from pyspark.sql.connect.session import SparkSession

from pulse_resources import object_store
from pulse_resources.errors import Transient
from pulse_resources.settings import load_settings

CONNECT_S = 10.0


def check(session: SparkSession | None = None) -> None:
    """Check the object store, and Spark if the work has a session of it. A Postgres outage raises anyway.

    Raises:
        Transient: a service does not answer: the failure may not be the tenant's own.
    """
    store = load_settings().object_store
    try:
        file_info = object_store.file_system().get_file_info(store.bucket)
    except OSError as error:
        raise Transient(f"the object store does not answer: {error}", endpoint=store.endpoint) from error
    if file_info.type is pafs.FileType.NotFound:
        raise Transient("the object store has no such bucket", bucket=store.bucket, endpoint=store.endpoint)
    if session is not None:
        _ask_spark(session)


def _ask_spark(session: SparkSession) -> None:
    spark = load_settings().spark
    try:
        socket.create_connection(spark.address, CONNECT_S).close()  # the client would retry for many minutes
        session.sql("SELECT 1").collect()
    except Exception as error:  # whatever it says: a statement that cannot fail has failed
        raise Transient(f"Spark does not answer: {error}", remote=spark.place) from error
