"""The blocking driver over real sockets: deadlines, lost connections, several brokers."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from headrace.clients.blocking import LATEST, BlockingClient, FetchPosition
from headrace.errors import ClosedError, ErrorCode, TransportError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.records.builder import build_batch
from headrace.types import TopicPartition
from tests.unit.clients.fake_broker import FakeCluster, Fault

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
BATCH = build_batch([(b"k", b"v", (), 1)])


def client(cluster: FakeCluster, **properties) -> BlockingClient:
    return BlockingClient(cluster.bootstrap, **{"retry_backoff_ms": 5, **properties})


def test_a_missing_listener_is_reported_at_once_with_the_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with (
            BlockingClient(f"127.0.0.1:{port}") as lonely,
            pytest.raises(
                TransportError, match=f"cannot connect to 127.0.0.1:{port}: Connection refused"
            ),
        ):
            lonely.connect()


def test_the_first_bootstrap_server_that_answers_will_do() -> None:
    with FakeCluster(topics={"t": 1}) as cluster, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        bootstrap = f"127.0.0.1:{unused.getsockname()[1]},{cluster.bootstrap}"
        with BlockingClient(bootstrap) as found:
            assert list(found.metadata().topics) == ["t"]


def test_requests_fan_out_to_all_leaders() -> None:
    with FakeCluster(nodes=2, topics={"t": 2}) as cluster, client(cluster) as two:
        two.produce(T0, BATCH)
        two.produce(T1, BATCH)
        assert {
            where: found.offset
            for where, found in two.list_offsets({T0: LATEST, T1: LATEST}).items()
        } == {T0: 1, T1: 1}
        fetched = two.fetch({T0: FetchPosition(0), T1: FetchPosition(0)})
        assert [bool(len(fetched[where].records)) for where in (T0, T1)] == [True, True]


def test_a_connection_lost_in_the_middle_is_made_again() -> None:
    with FakeCluster(topics={"t": 1}) as cluster, client(cluster) as stubborn:
        stubborn.connect()
        for kind in ("drop", "drop_after"):
            cluster.faults.append(Fault(ApiKey.METADATA, kind))
            assert list(stubborn.metadata(["t"]).topics) == ["t"]
        assert cluster.brokers[1].accepted == 3


def test_a_broker_that_restarts_is_found_again_on_its_port() -> None:
    with FakeCluster(topics={"t": 1}) as cluster, client(cluster) as patient:
        patient.produce(T0, BATCH)
        broker = cluster.brokers[1]
        broker.close()
        restart = threading.Timer(0.2, broker.listen)
        restart.start()
        try:
            assert patient.produce(T0, BATCH).base_offset == 1
        finally:
            restart.join()


def test_silence_ends_at_the_deadline_and_the_connection_is_given_up() -> None:
    with (
        FakeCluster(topics={"t": 1}) as cluster,
        client(cluster, request_timeout_ms=300) as impatient,
    ):
        impatient.metadata()
        cluster.faults.append(Fault(ApiKey.LIST_OFFSETS, "silence"))
        began = time.monotonic()
        with pytest.raises(TransportError, match="did not answer in time"):
            impatient.list_offsets({T0: LATEST})
        assert 0.27 < time.monotonic() - began < 5
        assert impatient.list_offsets({T0: LATEST})[T0].offset == 0, "on a new connection"
        assert cluster.brokers[1].accepted == 2


def test_a_call_to_any_broker_gives_up_a_silent_broker_early() -> None:
    with (
        FakeCluster(topics={"t": 1}) as cluster,
        client(cluster, request_timeout_ms=600) as patient,
    ):
        patient.connect()
        cluster.faults.append(Fault(ApiKey.METADATA, "silence"))
        assert list(patient.metadata().topics) == ["t"]
        assert cluster.brokers[1].accepted == 2


def test_a_connection_that_was_closed_while_idle_is_noticed_before_it_is_used() -> None:
    with FakeCluster(topics={"t": 1}) as cluster, client(cluster) as idle:
        idle.produce(T0, BATCH)
        broker = cluster.brokers[1]
        broker.close()
        broker.listen()
        assert not idle.fetch({T0: FetchPosition(0)})[T0].error, "a fetch is not tried twice"


def test_a_listener_that_never_answers_the_handshake() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with (
            BlockingClient(address, socket_connection_setup_timeout_ms=100) as waiting,
            pytest.raises(TransportError, match="does not answer the handshake"),
        ):
            waiting.connect()


def test_a_port_that_speaks_something_else_is_recognised() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                peer.recv(1000)

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with (
            BlockingClient(address) as lost,
            pytest.raises(TransportError, match="TLS or an HTTP port"),
        ):
            lost.connect()
        thread.join()


def test_a_fetch_reports_a_lost_connection_and_finds_the_new_leader_next_time() -> None:
    with FakeCluster(nodes=2, topics={"t": 1}) as cluster, client(cluster) as reader:
        reader.produce(T0, BATCH)
        cluster.leaders[T0] = 2
        assert reader.fetch({T0: FetchPosition(0)})[T0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert len(reader.fetch({T0: FetchPosition(0)})[T0].records) == len(BATCH)
        cluster.faults.append(Fault(ApiKey.FETCH, "drop"))
        assert reader.fetch({T0: FetchPosition(0)})[T0].error == ErrorCode.NETWORK_EXCEPTION
        assert not reader.fetch({T0: FetchPosition(0)})[T0].error


def test_an_expired_deadline_raises_the_last_error_of_the_flow() -> None:
    with (
        FakeCluster(topics={"t": 1}) as cluster,
        client(cluster, request_timeout_ms=300) as waiting,
    ):
        cluster.leaders[T0] = 9
        with pytest.raises(Exception, match="LEADER_NOT_AVAILABLE"):
            waiting.list_offsets({T0: LATEST})
        assert cluster.count(MetadataRequest) > 2


def test_two_threads_may_share_a_client() -> None:
    with FakeCluster(topics={"t": 1}) as cluster, client(cluster) as shared:
        failures: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(50):
                    assert list(shared.metadata(["t"]).topics) == ["t"]
            except BaseException as error:  # noqa: BLE001 - reported by the main thread
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []


def test_a_closed_client_raises_closed_error() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        closed = client(cluster)
        closed.connect()
        closed.close()
        with pytest.raises(ClosedError, match="closed"):
            closed.metadata()


def test_large_batches_pass_in_both_directions() -> None:
    value = bytes(range(256)) * 16384
    batch = build_batch([(None, value, (), 1)])
    with FakeCluster(topics={"t": 1}) as cluster, client(cluster) as big:
        big.produce(T0, batch)
        fetched = big.fetch({T0: FetchPosition(0, max_bytes=1 << 30)})[T0]
        assert bytes(fetched.records) == batch
