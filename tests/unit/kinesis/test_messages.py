"""Loggers that programs inject into a consumer of batches."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from headrace.kinesis.messages import bound


def test_a_logger_of_the_standard_library_gets_fields(caplog: pytest.LogCaptureFixture) -> None:
    log = bound(logging.getLogger("mine"), group="g", table="100%s")
    with caplog.at_level(logging.INFO):
        log.info("shard acquired", shard_id="shardId-7")
        log.bind(owner="me").warning("%s of %d", "one", 2, exc_info=False)
        log.debug("below the level")
    assert caplog.messages == [
        "shard acquired group=g table=100%s shard_id=shardId-7",
        "one of 2 group=g table=100%s owner=me",
    ]
    first: Any = caplog.records[0]
    assert first.fields == {"group": "g", "table": "100%s", "shard_id": "shardId-7"}
    assert (first.name, first.filename, first.funcName) == (
        "mine",
        "test_messages.py",
        "test_a_logger_of_the_standard_library_gets_fields",
    )


def test_a_logger_with_its_own_bind_is_used_unchanged() -> None:
    class Binding:
        def __init__(self, fields: dict[str, object]) -> None:
            self.fields = fields

        def bind(self, **fields: object) -> Binding:
            return Binding(self.fields | fields)

    log = bound(Binding({"app": 1}), group="g")
    assert isinstance(log, Binding)
    assert log.fields == {"app": 1, "group": "g"}
