"""Times as keys of records."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType, TimestampType

from headrace.pipelines import topic
from headrace.pipelines.encoding import key_problems

FIXED = ["UTC", "Etc/UTC", "GMT", "Z", "+00:00", "+05:30", "-8", "UTC+1", "GMT-03:00", "Etc/GMT+5"]
CHANGING = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]


@pytest.mark.parametrize("zone", [*FIXED, *CHANGING])
def test_a_time_is_a_key_where_clocks_are_never_set_back(zone: str) -> None:
    schema = StructType().add("at", TimestampType())
    problems = list(key_problems(schema, topic("t", key="at"), zone))
    assert bool(problems) is (zone in CHANGING)
