"""Maven coordinates of Iceberg for Spark, in the versions that Pulse runs."""

ICEBERG = "1.12.0"
RUNTIME = "iceberg-spark-runtime-4.1_2.13"
AWS_BUNDLE = "iceberg-aws-bundle"
