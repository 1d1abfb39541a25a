"""Apps that read a topic or a stream, and writers for both: the same program for both sources."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import headrace
from headrace.kinesis import AwsSettings, Streams, kinesis
from headrace.testing.kinesis import FakeAws, Limits
from headrace.workers.trial import Trial

Kind = Literal["topic", "stream"]
WAIT_S = 30.0


def fake_aws() -> FakeAws:
    """Return an account without limits per second, which would delay tests."""
    return FakeAws(limits=Limits().unthrottled())


def settings_of(aws: FakeAws) -> AwsSettings:
    """Return the settings with which clients reach a fake."""
    return AwsSettings(
        region=aws.region,
        endpoint_url=aws.endpoint_url,
        access_key_id="fake",
        secret_access_key="fake",
    )


def quick(aws: FakeAws, *names: str, **options: Any) -> Streams:
    """Return streams of a fake that are read often, with short leases."""
    given = {"leases": f"memory://{uuid.uuid4().hex}", "lease_duration_ms": 1_500, "poll_ms": 200}
    return kinesis(*names, aws=settings_of(aws), **{**given, **options})


class Place:
    """A topic or a stream named `orders`, with one partition or shard."""

    def __init__(self, kind: Kind, aws: FakeAws | None) -> None:
        self.kind = kind
        self._aws = aws
        self._streams = None if aws is None else quick(aws, "orders")
        self.trial: Trial | None = None

    @property
    def source(self) -> str | Streams:
        """Return the source for `@app.worker`."""
        return "orders" if self._streams is None else self._streams

    def put(self, value: bytes, key: str = "k") -> None:
        """Write one record to the source."""
        if self._aws is not None:
            self._aws.kinesis.put("orders", value, key)
        else:
            assert self.trial is not None
            self.trial.produce("orders", value, key=key)

    @contextmanager
    def running(self, app: headrace.App) -> Iterator[Trial]:
        """Run an app until the block ends."""
        with app.test() as trial:
            self.trial = trial
            yield trial


@contextmanager
def place_of(kind: Kind) -> Iterator[Place]:
    """Yield a new place of a kind."""
    if kind == "topic":
        yield Place(kind, None)
        return
    with fake_aws() as aws:
        aws.kinesis.create_stream("orders", 1)
        yield Place(kind, aws)
