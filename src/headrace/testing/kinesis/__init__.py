"""Fakes of Amazon Kinesis and DynamoDB, for tests without an account, without Docker and without Node.

from headrace.testing.kinesis import FakeAws, throttle

with FakeAws() as aws:
    aws.kinesis.create_stream("orders", 2)
    aws.kinesis.faults.on("GetRecords", throttle(), times=3)
    consume("orders", aws.endpoint_url)
    assert aws.kinesis.calls.count("GetRecords", error="ProvisionedThroughputExceededException") == 3
"""

from headrace.testing.kinesis.aws import FakeAws
from headrace.testing.kinesis.calls import Call, CallLog, LoggedCall
from headrace.testing.kinesis.dynamodb.machine import FakeDynamoDB
from headrace.testing.kinesis.errors import AwsError
from headrace.testing.kinesis.faults import (
    Exchange,
    Fault,
    delay,
    drop_connection,
    empty,
    error,
    fail_records,
    throttle,
)
from headrace.testing.kinesis.limits import Limits
from headrace.testing.kinesis.machine import FakeKinesis, Put
from headrace.testing.kinesis.shard import Shard, StoredRecord

__all__ = [
    "AwsError",
    "Call",
    "CallLog",
    "Exchange",
    "FakeAws",
    "FakeDynamoDB",
    "FakeKinesis",
    "Fault",
    "Limits",
    "LoggedCall",
    "Put",
    "Shard",
    "StoredRecord",
    "delay",
    "drop_connection",
    "empty",
    "error",
    "fail_records",
    "throttle",
]
