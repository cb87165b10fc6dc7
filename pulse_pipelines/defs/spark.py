"""Spark as a resource of Dagster's: where it is, only the settings say.

A `LazyPySparkResource` among the definitions would have its `spark_config` in the schema of every run's
config: who may launch a run could send its work to a server of theirs, or set what a session may do; and the
UI would show the address, with its token.
"""

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from pulse_resources.settings import load_settings


@dg.resource(config_schema={}, description="A session of the Spark that the settings name; takes no config.")
def pyspark(_: dg.InitResourceContext) -> LazyPySparkResource:
    return LazyPySparkResource(spark_config={"spark.remote": load_settings().spark.remote})
