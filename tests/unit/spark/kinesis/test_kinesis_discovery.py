"""Spark finds the format, and a look-up loads no large library."""

from __future__ import annotations

import subprocess
import sys

import pyspark_headrace_kinesis
from headrace.spark.kinesis.datasource import KinesisDataSource
from headrace.spark.kinesis.options import NAME


def test_spark_looks_for_a_class_of_this_name() -> None:
    assert pyspark_headrace_kinesis.DefaultSource is KinesisDataSource
    assert KinesisDataSource.name() == NAME


def test_a_look_up_loads_neither_arrow_nor_a_client_of_aws() -> None:
    program = (
        "import sys, pyspark.sql.datasource, pyspark_headrace_kinesis; "
        "print({'pyarrow', 'aiobotocore', 'botocore', 'aiohttp', 'headrace.kinesis'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
