"""The operations of IncrementalAlterConfigs."""

from __future__ import annotations

from enum import IntEnum


class ConfigOperation(IntEnum):
    """Kafka's `AlterConfigOp.OpType`: how a change treats the present value of a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3
