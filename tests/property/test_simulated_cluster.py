"""The simulated cluster of `tests.fixtures.cluster`: its links, its faults, and that a seed determines a run."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.replica.role import Role
from headrace.errors import ApiError, ErrorCode
from headrace.ports import Put
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.versions import VersionRange
from tests.fixtures.broker_harness import batch, fetch_request, produce_request, values
from tests.fixtures.cluster import SimulatedCluster
from tests.fixtures.cluster_links import LATE_MS, Fate, common_version

NONE = ErrorCode.NONE


def ask(
    cluster: SimulatedCluster, source: int, target: int, request: Any, wait_ms: int = 5_000
) -> Any:
    """Send a request from one broker to another, and return the response or the error."""
    deadline_ms = cluster.now_ms + wait_ms
    answer = cluster.brokers[source].peers.send(target, request, deadline_ms)
    cluster.run_until(lambda: answer.done)
    return answer.value


def written(cluster: SimulatedCluster, broker_id: int = 2) -> int:
    """Return the number of records in the log of a broker."""
    return cluster.replica(broker_id, "t").log.log_end_offset


@pytest.fixture
def cluster() -> SimulatedCluster:
    made = SimulatedCluster(3)
    made.create_topic("t", replicas=[(2,)])
    return made


def test_a_broker_sends_requests_to_another(cluster: SimulatedCluster) -> None:
    topic = MetadataRequestTopic(name="t")
    response = ask(cluster, 1, 2, MetadataRequest(topics=[topic]))
    assert response.topics[0].partitions[0].leader_id == 2


def test_a_request_has_the_highest_version_that_both_brokers_serve(
    cluster: SimulatedCluster,
) -> None:
    one, two = cluster.brokers[1], cluster.brokers[2]
    request = FetchRequest()
    highest = max(api.served.max for api in one.broker.apis if api.key == request.API_KEY)
    assert common_version(one, two, request) == highest
    older = VersionRange(4, highest - 1)
    two.broker._apis.rows = tuple(
        api._replace(served=older) if api.key == request.API_KEY else api for api in two.broker.apis
    )
    assert common_version(one, two, request) == highest - 1
    two.broker._apis.rows = ()
    error = ask(cluster, 1, 2, ApiVersionsRequest())
    assert isinstance(error, ApiError)
    assert error.code == ErrorCode.UNSUPPORTED_VERSION


def test_a_request_to_a_broker_that_is_down_is_not_sent(cluster: SimulatedCluster) -> None:
    cluster.kill(2)
    error = ask(cluster, 1, 2, produce_request("t", 0, batch(b"a")))
    assert error.code == ErrorCode.BROKER_NOT_AVAILABLE
    cluster.start(2)
    assert ask(cluster, 1, 2, produce_request("t", 0, batch(b"a"))).responses


def test_the_sender_does_not_know_the_fate_of_a_request_to_a_broker_that_dies(
    cluster: SimulatedCluster,
) -> None:
    answer = cluster.brokers[1].peers.send(
        2, fetch_request(("t", 0, 0), max_wait_ms=30_000), cluster.now_ms + 60_000
    )
    cluster.advance(1_000)
    assert not answer.done
    cluster.kill(2)
    cluster.advance(10)
    assert answer.value.code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize(
    ("fate", "records"),
    [("delivered", 1), ("request lost", 0), ("response lost", 1), ("doubled", 2), ("late", 1)],
)
def test_a_request_has_its_fate(cluster: SimulatedCluster, fate: Fate, records: int) -> None:
    cluster.links.way(1, 2).fates.append(fate)
    response = ask(cluster, 1, 2, produce_request("t", 0, batch(b"a")))
    if fate in {"delivered", "doubled"}:
        assert response.responses[0].partition_responses[0].error_code == NONE
    else:
        assert response.code == ErrorCode.REQUEST_TIMED_OUT
    cluster.advance(2 * LATE_MS)
    assert written(cluster) == records


def test_a_late_request_arrives_after_its_sender_got_the_error(cluster: SimulatedCluster) -> None:
    late = 0
    for _ in range(10):
        cluster.links.way(1, 2).fates.append("late")
        before = written(cluster)
        assert ask(cluster, 1, 2, produce_request("t", 0, batch(b"a"))).code
        late += written(cluster) == before
        cluster.advance(LATE_MS)
        assert written(cluster) == before + 1
    assert late > 5


def test_a_way_that_is_cut_loses_requests_and_the_other_one_responses(
    cluster: SimulatedCluster,
) -> None:
    cluster.cut(1, 2, both_ways=False)
    began_ms = cluster.now_ms
    assert ask(cluster, 1, 2, produce_request("t", 0, batch(b"a"))).code
    assert cluster.now_ms == began_ms + 5_000, "nothing but the deadline ends the request"
    assert written(cluster) == 0
    cluster.heal()
    cluster.cut(2, 1, both_ways=False)
    assert ask(cluster, 1, 2, produce_request("t", 0, batch(b"b"))).code
    assert written(cluster) == 1
    cluster.heal()
    assert ask(cluster, 1, 2, produce_request("t", 0, batch(b"c"))).responses


def test_a_waiting_fetch_does_not_delay_other_requests(cluster: SimulatedCluster) -> None:
    fetch = cluster.brokers[1].peers.send(
        2, fetch_request(("t", 0, 0), max_wait_ms=30_000), cluster.now_ms + 60_000
    )
    ask(cluster, 1, 2, produce_request("t", 0, batch(b"a")))
    cluster.run_until(lambda: fetch.done, timeout_ms=100)
    (row,) = fetch.value.responses[0].partitions
    assert values(row.records) == [b"a"]


def test_each_broker_has_the_role_of_the_newest_state(cluster: SimulatedCluster) -> None:
    cluster.create_topic("r", replicas=[(1, 2), (2, 3)], leaders=[2, 2])
    roles = [cluster.replica(each, "r").role for each in (1, 2)]
    assert roles == [Role.FOLLOWER, Role.LEADER]
    epoch = cluster.state("r").leader_epoch
    cluster.elect("r", 0, 1)
    assert (cluster.leader("r"), cluster.state("r").leader_epoch) == (1, epoch + 1)
    cluster.run_until(lambda: cluster.replica(1, "r").role is Role.LEADER)
    assert cluster.replica(1, "r").leader_epoch == epoch + 1
    cluster.run_until(lambda: cluster.replica(2, "r").role is Role.FOLLOWER)
    assert cluster.replica(3, "r", 1).role is Role.FOLLOWER


def test_a_power_cut_loses_what_is_not_synced_and_a_crash_does_not() -> None:
    lost = 0
    for seed in range(20):
        cluster = SimulatedCluster(1, seed=seed, durability="os")
        cluster.create_topic("t")
        cluster.produce("t", b"a")
        cluster.kill(1)
        cluster.start(1)
        assert written(cluster, 1) == 1
        cluster.produce("t", b"b")
        cluster.kill(1, power=True)
        cluster.start(1)
        lost += written(cluster, 1) < 2
    assert lost > 3


def test_an_acknowledged_record_survives_a_power_cut_with_fsync() -> None:
    for seed in range(10):
        cluster = SimulatedCluster(1, seed=seed)
        cluster.brokers[1].sync_ms = 20
        cluster.create_topic("t")
        cluster.produce("t", b"a")
        cluster.kill(1, power=True)
        cluster.start(1)
        assert cluster.log_of(1, "t"), seed


def test_the_power_fails_in_the_middle_of_an_operation() -> None:
    cluster = SimulatedCluster(1)
    cluster.create_topic("t")
    files: Any = cluster.brokers[1].files
    files.fuse = files.operations + 1
    cluster.brokers[1].run(lambda: files.write_file("x", b"1"))
    assert not cluster.brokers[1].is_running
    cluster.start(1)
    cluster.produce("t", b"a")


def test_the_session_of_a_killed_broker_expires_and_that_of_a_stopped_one_ends(
    cluster: SimulatedCluster,
) -> None:
    for broker_id in (1, 2, 3):
        store = cluster.brokers[broker_id].metadata
        store.commit([], [Put(f"live/{broker_id}", b"", ephemeral=True)])
    cluster.advance(100)
    began_ms = cluster.now_ms
    cluster.brokers[1].stop()
    cluster.kill(2)
    cluster.kill(3, ends_session=True)
    alive = [broker_id for broker_id in (1, 2, 3) if cluster.content.get(f"live/{broker_id}")]
    assert alive == [2]
    cluster.run_until(lambda: cluster.content.get("live/2") is None)
    assert cluster.now_ms == began_ms + cluster.session_timeout_ms


def test_a_paused_broker_handles_what_has_arrived_when_it_continues(
    cluster: SimulatedCluster,
) -> None:
    two = cluster.brokers[2]
    two.metadata.commit([], [Put("live/2", b"", ephemeral=True)])
    cluster.advance(100)
    two.pause()
    answer = cluster.brokers[1].peers.send(
        2, produce_request("t", 0, batch(b"a")), cluster.now_ms + 60_000
    )
    cluster.advance(5_000)
    assert cluster.content.get("live/2") is not None
    assert not answer.done
    cluster.advance(5_000)
    assert cluster.content.get("live/2") is None, "the pause is longer than the session"
    two.resume()
    cluster.run_until(lambda: answer.done, timeout_ms=100)
    assert answer.value.responses[0].partition_responses[0].error_code == NONE


def test_time_passes_while_a_broker_starts() -> None:
    cluster = SimulatedCluster(2, store_delay_ms=50)
    began_ms = cluster.now_ms
    cluster.brokers[1].restart()
    assert began_ms < cluster.now_ms < began_ms + 5_000


def test_a_condition_that_never_holds_ends_the_run(cluster: SimulatedCluster) -> None:
    with pytest.raises(TimeoutError):
        cluster.run_until(lambda: False, timeout_ms=1_000)


def trace(seed: int) -> list[object]:
    """Return what happens in a cluster with faults, with the times."""
    cluster = SimulatedCluster(3, seed=seed, delay_ms=20, store_delay_ms=20)
    seen: list[object] = []
    cluster.links.on_request = lambda *sent: seen.append((cluster.now_ms, sent[:2]))
    cluster.create_topic("t", 6)
    for source in (1, 2, 3):
        for target in {1, 2, 3} - {source}:
            way = cluster.links.way(source, target)
            way.chances = {"request lost": 0.2, "doubled": 0.2, "late": 0.2, "response lost": 0.2}
    for number in range(20):
        source, target = 1 + number % 3, 1 + (number + 1) % 3
        answer = ask(cluster, source, target, produce_request("t", target - 1, batch(b"a")), 500)
        seen.append((cluster.now_ms, repr(answer)))
    for broker in cluster.brokers.values():
        seen.extend(broker.journal.lines)
    return seen


def test_a_seed_determines_the_run() -> None:
    assert trace(1) == trace(1)
    assert trace(1) != trace(2)
