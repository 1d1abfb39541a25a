"""An embedded broker that other processes reach too: shared groups, wake-ups across threads, closing at any moment."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
import threading
import time

import pytest

from headrace import aio
from headrace.broker.context import RequestContext
from headrace.broker.session import Session
from headrace.clients.consumer.blocking import Consumer
from headrace.clients.producer.blocking import Producer
from headrace.embedded.broker import Broker
from headrace.embedded.clock import ManualClock
from headrace.embedded.listening import LoopbackListener
from headrace.errors import ClosedError, ConfigError, HeadraceError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.frame import RequestHeader
from headrace.types import TopicPartition
from tests.fixtures.broker_harness import batch, produce_request

FIRST = TopicPartition("t", 0)
NO_DELAY = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(params=["memory", "disk"])
def broker(request, tmp_path):
    data = tmp_path if request.param == "disk" else None
    with Broker(data, configs=NO_DELAY) as opened:
        yield opened


def wait_for(condition) -> None:
    """Look again and again, for a minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within a minute"
        threading.Event().wait(0.01)


def poll_until(consumer, count: int) -> list:
    found: list = []
    for _ in range(600):
        found += consumer.poll(0.1)
        if len(found) >= count:
            return found
    raise AssertionError(f"{len(found)} of {count} records came")


def test_local_and_remote_clients_use_the_same_topic(broker) -> None:
    broker.create_topic("t", serde="str")
    address = broker.listen()
    host, _, port = address.rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0
    broker.publish("t", "local")
    with Producer(address) as producer:
        assert producer.send("t", "remote").result(10).offset == 1
    assert [record.value for record in broker.read("t", 0, 0)] == ["local", "remote"]
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([FIRST])
        assert [record.value for record in poll_until(consumer, 2)] == ["local", "remote"]


def test_a_waiting_client_is_woken_from_another_thread(broker) -> None:
    """A remote long poll is answered by a local produce, a local one by a remote produce, long before they end."""
    broker.create_topic("t")
    address = broker.listen()
    for reader, writer in ((address, broker), (broker, address)):
        with (
            Consumer(reader, fetch_max_wait_ms=60_000, request_timeout_ms=90_000) as consumer,
            Producer(writer, linger_ms=0) as producer,
        ):
            consumer.assign([FIRST])
            consumer.seek_to_end([FIRST])
            assert consumer.poll(0.05) == []
            producer.send("t", b"x").result(10)
            assert len(consumer.poll(30)) == 1


def test_local_and_remote_members_share_a_group(broker) -> None:
    """Two members share four partitions; each record goes to one of them, and each member has two partitions."""
    broker.create_topic("t", 4)
    address = broker.listen()
    got: dict[str, list[int]] = {"local": [], "remote": []}
    divided = threading.Barrier(3)
    over = threading.Event()

    def consume(name: str, target) -> None:
        with Consumer(target, group="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["t"])
            while len(consumer.assignment()) != 2:  # waits while partitions are divided
                got[name] += [record.partition for record in consumer.poll(0.02)]
            divided.wait(30)
            while not over.is_set():
                got[name] += [record.partition for record in consumer.poll(0.02)]

    threads = [
        threading.Thread(target=consume, args=each, daemon=True)
        for each in (("local", broker), ("remote", address))
    ]
    for thread in threads:
        thread.start()
    divided.wait(30)
    with Producer(broker) as producer:
        for partition in range(4):
            producer.send("t", b"x", partition=partition)
    wait_for(lambda: sum(map(len, got.values())) == 4)
    over.set()
    for thread in threads:
        thread.join(30)
    assert sorted(got["local"] + got["remote"]) == [0, 1, 2, 3]
    assert len(got["local"]) == 2


def test_a_consumer_in_another_process_reads_the_topic(broker) -> None:
    broker.create_topic("t", serde="str")
    address = broker.listen()
    script = """
import sys, headrace
with headrace.Consumer(sys.argv[1], group="g", auto_offset_reset="earliest") as consumer:
    consumer.subscribe(["t"])
    while not (records := consumer.poll(1)):
        pass
    print(records[0].value)
"""
    command = [sys.executable, "-c", script, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        broker.publish("t", "hello")
        output, _ = process.communicate(timeout=60)
    assert output == "hello\n"
    assert process.returncode == 0


def test_local_and_remote_asyncio_clients_share_a_topic(broker) -> None:
    broker.create_topic("t")
    address = broker.listen()

    async def main() -> list:
        async with aio.Producer(broker) as producer, aio.Consumer(address) as consumer:
            await consumer.assign([FIRST])
            await consumer.seek_to_beginning([FIRST])
            await (await producer.send("t", b"x"))
            return await consumer.poll(30)

    assert [record.value for record in asyncio.run(main())] == [b"x"]


def test_a_broker_may_listen_before_it_has_clients_and_on_several_addresses(broker) -> None:
    first, second = broker.listen(), broker.listen("localhost:0")
    assert first != second
    broker.create_topic("t")
    with Producer(broker) as producer:
        producer.send("t", b"1").result(10)
    with Producer(second) as producer:
        assert producer.send("t", b"2").result(10).offset == 1


def test_invalid_addresses_are_refused(broker) -> None:
    with pytest.raises(ConfigError, match="insecure=True"):
        broker.listen("0.0.0.0:0")
    with pytest.raises(ConfigError, match="HOST:PORT"):
        broker.listen("nonsense")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)):
            broker.listen(f"127.0.0.1:{port}")
    assert broker.listen("0.0.0.0:0", insecure=True).startswith("0.0.0.0:")


def test_a_broker_with_a_manual_clock_cannot_listen() -> None:
    with Broker(clock=ManualClock()) as broker, pytest.raises(ConfigError, match="clock"):
        broker.listen()


def test_closing_ends_connections_threads_and_waiting_clients(broker) -> None:
    before = set(threading.enumerate())
    broker.create_topic("t")
    address = broker.listen()
    host, _, port = address.rpartition(":")
    client = socket.create_connection((host, int(port)))
    client.settimeout(30)
    broker.close()
    assert client.recv(1) == b""
    client.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)))
    assert not set(threading.enumerate()) - before
    with pytest.raises(ClosedError):
        broker.listen()


def test_data_acknowledged_to_remote_clients_survives_on_disk(tmp_path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t")
        with Producer(broker.listen()) as producer:
            sent = [producer.send("t", b"%d" % number) for number in range(100)]
            offsets = [each.result(10).offset for each in sent]
    with Broker(tmp_path) as again:
        assert [record.offset for record in again.read("t", 0, 0)] == offsets


class Traffic:
    """Local and remote producers and consumers of one topic, each in a thread, until it is over."""

    def __init__(self, broker: Broker, address: str) -> None:
        self.told: list[tuple[int, int, bytes]] = []
        """Partition, offset and value of each record whose offset was reported to a producer."""
        self.consumed = 0
        self.unexpected: list[Exception] = []
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work, name, target), daemon=True)
            for work in (self._produce, self._consume)
            for name, target in (("local", broker), ("remote", address))
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        assert not self.unexpected

    def _guarded(self, work, name: str, target) -> None:
        try:
            work(name, target)
        except HeadraceError:
            pass  # the broker was closed
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.unexpected.append(error)

    def _produce(self, name: str, target) -> None:
        number = 0
        with Producer(
            target, linger_ms=0, retries=0, delivery_timeout_ms=2000, max_block_ms=2000
        ) as producer:
            while not self._over.is_set():
                value = f"{name} {number}".encode()
                where = producer.send("t", value, partition=number % 3).result(10)
                self.told.append((where.partition, where.offset, value))
                number += 1

    def _consume(self, name: str, target) -> None:
        consumer = Consumer(target, group="g", auto_offset_reset="earliest")
        try:
            consumer.subscribe(["t"])
            while not self._over.is_set():
                self.consumed += len(consumer.poll(0.1))
        finally:
            consumer.close(commit=False, timeout_s=0)


def everything(broker: Broker) -> dict[tuple[int, int], bytes]:
    return {
        (record.partition, record.offset): record.value
        for number in range(3)
        for record in broker.read("t", number, 0, 1_000_000)
    }


@pytest.mark.parametrize("moment", range(6))
def test_a_close_at_any_moment_ends_all_clients(tmp_path, moment) -> None:
    """Check that each acknowledged record exists, also after a restart."""
    data = tmp_path if moment % 2 else None
    broker = Broker(data, configs=NO_DELAY)
    broker.create_topic("t", 3)
    traffic = Traffic(broker, broker.listen())
    wait_for(lambda: traffic.consumed > moment * 60 or traffic.unexpected)
    told, stored = list(traffic.told), everything(broker)
    assert all(stored[partition, offset] == value for partition, offset, value in told)
    broker.close()
    traffic.end()
    if data is not None:
        with Broker(data) as again:
            stored = everything(again)
        assert all(stored[partition, offset] == value for partition, offset, value in traffic.told)


def test_a_connection_continues_in_the_thread_that_listens() -> None:
    """A thread of the program may do the last step of its request; the loop of the connection is in another."""
    with Broker() as broker:
        broker.create_topic("t", 1, configs={"compression.type": "gzip"})
        broker.listen()
        runtime = broker._runtime
        assert isinstance(runtime.listener, LoopbackListener)
        threads: list[str] = []
        session = Session()
        session.on_idle = lambda: threads.append(threading.current_thread().name)
        header = RequestHeader(ApiKey.PRODUCE, 9, 0, "client")
        context = RequestContext(
            runtime.now_ms(), header, "127.0.0.1:1", "127.0.0.1", 9092, session
        )
        slow = bytes(random.Random(1).choices(b"abcdefghijklmnop", k=900_000))
        with runtime.condition:  # the thread that listens cannot do a step now
            reply = runtime.listener._hub._broker.handle(
                context, produce_request("t", 0, batch(slow))
            )
            assert session.busy
            while runtime.broker.services.steps:
                runtime.pump()
        wait_for(lambda: reply.done and not session.busy)
        assert threads == ["headrace-listen"]
