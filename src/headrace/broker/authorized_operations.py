"""What a client may do, where it asks: everything, since this broker does not restrict anybody.

Each number is a set of operations, one bit each at the place that Kafka's `AclOperation` gives it. Tools hide what is
not in the set, and an empty or unknown one hides everything.
"""

from __future__ import annotations

from typing import Final

_READ: Final = 1 << 3
_WRITE: Final = 1 << 4
_CREATE: Final = 1 << 5
_DELETE: Final = 1 << 6
_ALTER: Final = 1 << 7
_DESCRIBE: Final = 1 << 8
_CLUSTER_ACTION: Final = 1 << 9
_DESCRIBE_CONFIGS: Final = 1 << 10
_ALTER_CONFIGS: Final = 1 << 11
_IDEMPOTENT_WRITE: Final = 1 << 12
_CONFIGS: Final = _DESCRIBE_CONFIGS | _ALTER_CONFIGS

NOT_ASKED: Final = -(1 << 31)
TOPIC_OPERATIONS: Final = _READ | _WRITE | _CREATE | _DELETE | _ALTER | _DESCRIBE | _CONFIGS
GROUP_OPERATIONS: Final = _READ | _DELETE | _DESCRIBE | _CONFIGS
CLUSTER_OPERATIONS: Final = (
    _CREATE | _ALTER | _DESCRIBE | _CLUSTER_ACTION | _CONFIGS | _IDEMPOTENT_WRITE
)
