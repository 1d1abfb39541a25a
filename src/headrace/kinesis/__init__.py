"""Amazon Kinesis: consumers whose members share the shards by leases, producers, and a bridge to topics.

from headrace.kinesis import kinesis

@app.worker(kinesis("orders", region="eu-central-1"), group="billing")
async def bill(order: Order) -> None: ...

The names of this package are loaded at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from headrace.kinesis.aio import Producer
    from headrace.kinesis.client.settings import AwsSettings
    from headrace.kinesis.producing.records import SentRecord
    from headrace.kinesis.producing.settings import ProducerSettings
    from headrace.kinesis.stream import Streams, kinesis

__all__ = ["AwsSettings", "Producer", "ProducerSettings", "SentRecord", "Streams", "kinesis"]

_MODULES: Final = {
    "AwsSettings": "headrace.kinesis.client.settings",
    "Producer": "headrace.kinesis.aio",
    "ProducerSettings": "headrace.kinesis.producing.settings",
    "SentRecord": "headrace.kinesis.producing.records",
    "Streams": "headrace.kinesis.stream",
    "kinesis": "headrace.kinesis.stream",
}


def __getattr__(name: str) -> Any:
    """Load the module of a public name (PEP 562)."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'headrace.kinesis' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
