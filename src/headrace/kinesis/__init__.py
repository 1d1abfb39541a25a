"""Amazon Kinesis: consumers whose members share the shards by leases, producers, and a bridge to topics.

from headrace.kinesis import kinesis

@app.worker(kinesis("orders", region="eu-central-1"), group="billing")
async def bill(order: Order) -> None: ...
"""

from headrace.kinesis.client.settings import AwsSettings
from headrace.kinesis.producing.producer import Producer
from headrace.kinesis.producing.records import SentRecord
from headrace.kinesis.producing.settings import ProducerSettings
from headrace.kinesis.stream import Streams, kinesis

__all__ = ["AwsSettings", "Producer", "ProducerSettings", "SentRecord", "Streams", "kinesis"]
