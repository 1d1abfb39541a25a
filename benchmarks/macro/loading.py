"""Measure produces while the broker loads a large `__consumer_offsets`.

`python -m benchmarks.macro.loading` fills the topic with commits, starts the broker, and produces from the ready line
until the groups are served. It prints when the broker was ready, when the groups were served, and how long the produces
took. Then it does the same with a broker in this process, and measures CPU time: how long each produce waits for a step
of the load. Other programs on the machine do not change that.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from headrace.broker.coordinators.internal_log import InternalLog
from headrace.broker.topic_names import OFFSETS_TOPIC
from headrace.core.coordinator.state.records import CommittedOffset, OffsetCommit, encode_records
from headrace.errors import ErrorCode
from headrace.metadata_stores.sqlite import SqliteMetadataStore
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headrace.records.builder import build_batch
from headrace.server.garbage import FullCollections
from headrace.storage.os_files import OsFileSystem
from tests.conformance.server.wire import NOW_MS, WireClient
from tests.fixtures.broker_harness import BrokerHarness, produce_request
from tests.fixtures.processes import ServerProcess

GROUPS = 800
COMMITS_PER_GROUP = 50
COMMITS_PER_BATCH = 100
OFFSET_FETCH_VERSION = 8
PRODUCE_INTERVAL_S = 0.002


def fill(data: Path, megabytes: int) -> None:
    """Fill one partition of `__consumer_offsets` with commits of many groups."""
    data.mkdir(mode=0o700)
    store = SqliteMetadataStore(data / "metadata.sqlite")
    harness = BrokerHarness(
        files=OsFileSystem(data),
        metadata=store,
        broker_id=1,
        offsets_topic_num_partitions=1,
        offsets_topic_segment_bytes=104_857_600,
    )
    harness.now_ms = NOW_MS
    harness.create_topic("t", headrace_durability="os")
    harness.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    services = harness.broker.services
    log = InternalLog(OFFSETS_TOPIC, services.topics, services.partitions, services.replicas)
    commits = [
        OffsetCommit(f"group-{number}", "t", partition, CommittedOffset(1, -1, "", NOW_MS))
        for number in range(GROUPS)
        for partition in range(COMMITS_PER_GROUP)
    ]
    batches = [
        encode_records(commits[start : start + COMMITS_PER_BATCH], NOW_MS)
        for start in range(0, len(commits), COMMITS_PER_BATCH)
    ]
    written = 0
    while written < megabytes << 20:
        for batch in batches:
            log.append(0, batch, NOW_MS)
            written += len(batch)
        harness.sync()
    harness.broker.close(NOW_MS)
    store.close()


def groups_are_served(client: WireClient) -> bool:
    """Return whether the broker returns a committed offset."""
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    wanted = OffsetFetchRequestGroup(group_id="group-1", topics=topics)
    (group,) = client.request(OffsetFetchRequest(groups=[wanted]), OFFSET_FETCH_VERSION).groups
    if group.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return False
    assert group.error_code == 0, group
    assert group.topics[0].partitions[0].committed_offset == 1
    return True


def main() -> None:
    """Fill, start, produce, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    megabytes = parser.parse_args().megabytes
    directory = Path(tempfile.mkdtemp())
    try:
        fill(directory / "data", megabytes)
        in_process(directory / "data")
        server = ServerProcess(directory / "data", log_path=directory / "server.log")
        server.start()
        try:
            produces, served_s = produce_until_served(server)
        finally:
            server.kill()
    finally:
        shutil.rmtree(directory)
    print(f"{megabytes} MB of commits: ready after {server.ready_after_s:.2f} s")
    print(f"groups served {served_s:.2f} s after that")
    report("produces to the server", produces)


def report(what: str, produces: list[float]) -> None:
    """Print the shares of the times of produces."""
    produces.sort()
    for share in (0.5, 0.99, 0.999, 1.0):
        at = produces[min(int(len(produces) * share), len(produces) - 1)]
        print(f"{what}: p{share * 100:g} {at * 1_000:.1f} ms of {len(produces)}")


def in_process(data: Path) -> None:
    """Open a broker in this process, and let a produce arrive before each of its steps."""
    store = SqliteMetadataStore(data / "metadata.sqlite")
    began = time.process_time()
    collections = FullCollections()
    collections.start()
    harness = BrokerHarness(files=OsFileSystem(data), metadata=store, now_ms=NOW_MS, broker_id=1)
    print(f"in process: open after {time.process_time() - began:.2f} s of CPU")
    batch = build_batch([(None, bytes(1_000), (), NOW_MS)])
    produces: list[float] = []
    while harness.broker.services.steps:
        arrived = time.process_time()
        harness.broker.tick(harness.now_ms)
        pending = harness.send(produce_request("t", 0, batch))
        produces.append(time.process_time() - arrived)
        assert pending.done
    print(f"in process: loaded after {time.process_time() - began:.2f} s of CPU")
    report("produces in process, CPU time", produces)
    collections.stop()
    harness.broker.close(NOW_MS)
    store.close()


def produce_until_served(server: ServerProcess) -> tuple[list[float], float]:
    """Produce until the groups are served; return the times of the produces, and the whole time, in seconds."""
    address = (server.host, server.port)
    producer, consumer = WireClient(address), WireClient(address)
    batch = build_batch([(None, bytes(1_000), (), NOW_MS)])
    produces: list[float] = []
    began = time.perf_counter()
    while not groups_are_served(consumer) or len(produces) < 1_000:
        for _ in range(20):
            at = time.perf_counter()
            assert producer.produce("t", 0, batch).error_code == 0
            produces.append(time.perf_counter() - at)
            time.sleep(PRODUCE_INTERVAL_S)
    return produces, time.perf_counter() - began


if __name__ == "__main__":
    main()
