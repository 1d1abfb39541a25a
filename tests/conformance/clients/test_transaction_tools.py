"""Kafka's tools for transactions read the stored records, and find and end hanging transactions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.conformance.differential.peer import Peer, advertised
from tests.conformance.differential.test_transactions import Producer
from tests.fixtures.targets import HEADRACE_TEST_SETTINGS, HeadraceServer
from tools.fetch_java import JavaUnavailableError, java_command, kafka_class_path

pytestmark = pytest.mark.java
TIMEOUT_S = 60
LATER_COORDINATOR = 1_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HeadraceServer]:
    settings = {**HEADRACE_TEST_SETTINGS, "transaction.state.log.num.partitions": "1"}
    server = HeadraceServer(tmp_path / "headrace", settings=settings)
    try:
        kafka_class_path()
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    server.start()
    try:
        yield server
    finally:
        server.stop()


def tool(name: str, *arguments: str) -> str:
    options = ["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    options += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", kafka_class_path()]
    done = subprocess.run(
        [java_command(), *options, f"org.apache.kafka.tools.{name}", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    return done.stdout


def test_the_tools_find_and_end_a_hanging_transaction_and_read_the_stored_records(
    server: HeadraceServer,
) -> None:
    host, port = server.bootstrap.rsplit(":", 1)
    peer = Peer("headrace", (host, int(port)), advertised((host, int(port))))
    peer.create("t")
    producer = Producer(peer, "t", "bumping")
    producer.init("init", "")
    producer.send("send", "")
    marker = WritableTxnMarker(
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
        coordinator_epoch=LATER_COORDINATOR,
    )
    peer.quiet(WriteTxnMarkersRequest(markers=[marker]))  # no coordinator did that
    producer.end("commit", "")
    producer.over("over", "")
    producer.send("send", "")
    producer.end("commit", "")

    def state() -> str:
        request = DescribeTransactionsRequest(transactional_ids=["t"])
        return str(peer.quiet(request).transaction_states[0].transaction_state)

    def says(line: str) -> bool:
        return line in server.log_path.read_text()

    assert state() == "PrepareCommit"
    peer.wait_for("told", lambda: says("transaction_markers_refused"))
    assert says("kafka-transactions abort")

    at = ("--bootstrap-server", server.bootstrap)
    place = ("--topic", "t", "--partition", "0")
    described = tool("TransactionsCommand", *at, "describe-producers", *place)
    *_, coordinator, _, _, start_offset = described.splitlines()[1].split()
    assert (int(coordinator), int(start_offset)) == (LATER_COORDINATOR, 2)
    tool("TransactionsCommand", *at, "abort", *place, "--start-offset", start_offset)
    peer.wait_for("complete", lambda: state() == "CompleteCommit")
    peer.close()

    log = server.directory / "data" / "__transaction_state-0" / f"{0:020}.log"
    stored = tool("DumpLogSegments", "--transaction-log-decoder", "--files", str(log))
    last = [line for line in stored.splitlines() if "payload" in line][-1]
    assert '"transactionalId":"t"' in last
    assert f'"producerId":{producer.id},' in last
    assert '"transactionStatus":4,' in last
    assert '"clientTransactionVersion":2' in last
