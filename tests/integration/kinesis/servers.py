"""Servers of the tests that speak Kinesis (kinesis-local) and DynamoDB (dynalite): on Node, in memory, on free ports.

They are slow: a module or a whole session shares one, with streams and tables of unique names.
"""

from __future__ import annotations

import asyncio
import queue
import subprocess
import threading
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol, TextIO, TypeVar

import pytest

from headrace.kinesis.client.opening import open_client
from headrace.kinesis.client.settings import AwsClient, AwsSettings
from tests.fixtures.javascript import NodeUnavailableError, node_packages

JS = Path(__file__).parent / "js"
START_TIMEOUT_S = 120
REGION = "us-east-1"


def dummy_aws(url: str) -> AwsSettings:
    """Return the settings for a server that accepts every key."""
    return AwsSettings(
        region=REGION, endpoint_url=url, access_key_id="dummy", secret_access_key="dummy"
    )


@contextmanager
def node_server(name: str) -> Iterator[str]:
    """Run `js/<name>.js` until the block ends; yield its address.

    Raises:
        NodeUnavailableError: Node or npm is not installed, or npm could not install the packages.
    """
    node, directory = node_packages(JS / "package.json", programs=[JS / f"{name}.js"])
    process = subprocess.Popen(
        [node, str(directory / f"{name}.js")],
        stdin=subprocess.PIPE,  # the pipe closes when this process ends or is killed, and then the server ends
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    ports: queue.Queue[int | None] = queue.Queue()
    message: deque[str] = deque(maxlen=50)
    reader = threading.Thread(target=_read, args=(process.stdout, ports, message), daemon=True)
    reader.start()
    try:
        port = ports.get(timeout=START_TIMEOUT_S)
        assert port is not None, f"{name}.js ended: {''.join(message)}"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdin.close()
        process.stdout.close()


def _read(output: TextIO, ports: queue.Queue[int | None], message: deque[str]) -> None:
    for line in output:
        message.append(line)
        if line.startswith("port "):
            ports.put(int(line.split()[1]))
    ports.put(None)


def _address(name: str) -> Iterator[str]:
    try:
        with node_server(name) as url:
            yield url
    except NodeUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def kinesis_url() -> Iterator[str]:
    """Return the URL of kinesis-local."""
    yield from _address("kinesis")


@pytest.fixture(scope="session")
def dynamodb_url() -> Iterator[str]:
    """Return the URL of dynalite."""
    yield from _address("dynamodb")


class LocalStream(Protocol):
    """A stream on kinesis-local; the suites of producers and readers derive from it."""

    def __init__(self, client: AwsClient, name: str) -> None: ...

    async def active(self) -> None:
        """Wait until the stream can be used."""


S = TypeVar("S", bound=LocalStream)


@asynccontextmanager
async def local_stream(url: str, shards: int, kind: type[S]) -> AsyncIterator[S]:
    """Create a stream of a unique name, and delete it when the block ends."""
    name = f"orders-{uuid.uuid4()}"
    async with open_client(dummy_aws(url), "kinesis") as client:
        await client.create_stream(StreamName=name, ShardCount=shards)
        stream = kind(client, name)
        await stream.active()
        yield stream
        await client.delete_stream(StreamName=name)


def run_on_stream(
    url: str, shards: int, kind: type[S], scenario: Callable[[S], Awaitable[None]]
) -> None:
    """Run a scenario on a new stream."""

    async def whole() -> None:
        async with local_stream(url, shards, kind) as stream:
            await scenario(stream)

    asyncio.run(whole())
