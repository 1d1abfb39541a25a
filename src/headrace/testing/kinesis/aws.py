"""The fakes of Kinesis and DynamoDB at one address, for tests of programs that use AWS."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace.embedded.clock import Clock
from headrace.errors import ConfigError
from headrace.testing.clock import LeapingClock
from headrace.testing.kinesis.account import ShardEnd
from headrace.testing.kinesis.dynamodb.machine import FakeDynamoDB
from headrace.testing.kinesis.limits import Limits
from headrace.testing.kinesis.machine import FakeKinesis
from headrace.testing.kinesis.service import AwsService

if TYPE_CHECKING:
    from headrace.testing.kinesis.server import Server


class FakeAws:
    """Kinesis and DynamoDB in this process, on a free port of 127.0.0.1.

        with FakeAws() as aws:
            aws.kinesis.create_stream("orders", 2)
            client = boto3.client("kinesis", **aws.client_options)

    In a `with` statement the server runs in a thread of its own, in `async with` on the caller's event loop.

    Attributes:
        kinesis: The fake of Kinesis.
        dynamodb: The fake of DynamoDB.
        clock: The clock of both.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
        transition_ms: int = 0,
        shard_end: ShardEnd = "with_data",
        region: str | None = None,
        port: int = 0,
    ) -> None:
        """Create an empty account.

        Args:
            clock: The clock; None is the process's clock, which `advance` moves ahead.
            limits: The limits of Kinesis; `Limits().unthrottled()` has no limits per second.
            transition_ms: The milliseconds for which a stream is CREATING, UPDATING or DELETING; 0: changes are done at
                once.
            shard_end: How reading a closed shard ends; see `FakeKinesis`.
            region: The only region that has streams and tables. None: all regions have the same ones.
            port: The port to listen on; 0 is a free port.
        """
        self.clock: Clock = clock or LeapingClock()
        self.region = region or "us-east-1"
        self.kinesis = FakeKinesis(
            clock=self.clock,
            limits=limits,
            transition_ms=transition_ms,
            shard_end=shard_end,
            region=self.region,
        )
        self.dynamodb = FakeDynamoDB(
            clock=self.clock, transition_ms=transition_ms, region=self.region
        )
        self._only_region = region
        self._port = port
        self._server: Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def endpoint_url(self) -> str:
        """The URL of the server.

        Raises:
            ConfigError: The server does not run.
        """
        if self._server is None:
            raise ConfigError(
                "the fake of AWS is not running: start it, or use it in a with statement"
            )
        return f"http://127.0.0.1:{self._server.port}"

    @property
    def client_options(self) -> dict[str, str]:
        """The options of a client of boto3 or aiobotocore: address, region and a key without a meaning."""
        return {
            "endpoint_url": self.endpoint_url,
            "region_name": self.region,
            "aws_access_key_id": "fake",
            "aws_secret_access_key": "fake",
        }

    def advance(self, milliseconds: int) -> None:
        """Move the clock ahead: iterators expire, old records are removed, rate limits start again."""
        self.kinesis.advance(milliseconds)

    def start(self) -> Self:
        """Run the server in a thread of its own."""
        server = self._make_server()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="headrace-fake-aws", daemon=True
        )
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(server.start(), self._loop).result()
        except BaseException:
            self._end_thread()
            raise
        self._server = server
        return self

    def stop(self) -> None:
        """End the thread. The data stays."""
        if self._loop is not None and self._server is not None:
            asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result()
            self._server = None
            self._end_thread()

    def _end_thread(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None

    def _make_server(self) -> Server:
        if self._server is not None:
            raise ConfigError("the fake of AWS is running already")
        try:
            from headrace.testing.kinesis.server import Server
        except ModuleNotFoundError as error:
            raise ConfigError(
                "the fake of AWS needs aiohttp: pip install 'headrace[kinesis]'"
            ) from error
        services: dict[str, AwsService] = {
            "Kinesis_20131202": self.kinesis,
            "DynamoDB_20120810": self.dynamodb,
        }
        return Server(services, self._only_region, self._port)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        server = self._make_server()
        await server.start()
        self._server = server
        return self

    async def __aexit__(self, *failure: object) -> None:
        assert self._server is not None
        await self._server.stop()
        self._server = None
