"""Parts of Spark that frames need and that may be missing, with fakes.

tests/integration/spark/test_pipeline_examples.py uses Spark.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.pipelines.frames import query_id


def batch(found: str | None) -> Any:
    context = SimpleNamespace(getLocalProperty=lambda _: found)
    return SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context))


def test_batches_of_queries_that_spark_does_not_name_are_not_taken_for_each_other() -> None:
    assert query_id(batch("7f0c")) == "7f0c"
    with pytest.raises(ConfigError, match="PYSPARK_PIN_THREAD"):
        query_id(batch(None))
