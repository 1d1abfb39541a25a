"""The bounds of the work that one client can cause."""

from __future__ import annotations

import errno
from itertools import pairwise

import pytest

from headrace.broker.context import CloseConnection, RequestContext
from headrace.broker.handlers.fetch import LONGEST_WAIT_MS
from headrace.broker.handlers.metadata import CREATIONS_PER_REQUEST
from headrace.broker.session import Session
from headrace.broker.waiting.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH
from headrace.broker.waiting.steps import CREATION_COST, LARGE_REQUEST_BYTES, STEP_COST
from headrace.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.frame import RequestHeader
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.records.builder import build_batch
from headrace.records.compression import Compression
from headrace.records.raw import METER
from headrace.records.reader import read_records
from tests.fixtures.broker_harness import BrokerHarness, batch, fetch_request, produce_request


def test_a_wait_of_weeks_is_cut_short():
    harness = BrokerHarness()
    harness.create_topic("t")
    pending = harness.send(fetch_request(("t", 0, 0), max_wait_ms=2**31 - 1))
    harness.advance(LONGEST_WAIT_MS)
    assert pending.response.responses[0].partitions[0].error_code == ErrorCode.NONE
    assert len(harness.broker.services.purgatory) == 0


def test_a_partition_drops_completed_waiters():
    harness = BrokerHarness()
    harness.create_topic("t")
    for _ in range(50):
        harness.send(fetch_request(("t", 0, 0), max_wait_ms=100))
    partition = harness.broker.services.partitions.require("t", 0)
    assert len(partition.watchers) == 50
    harness.advance(100)
    assert len(partition.watchers) == 0


def test_a_metadata_request_creates_a_bounded_number_of_topics():
    harness = BrokerHarness()
    names = [f"t{number}" for number in range(CREATIONS_PER_REQUEST + 5)]
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
    errors = [topic.error_code for topic in harness.call(request).topics]
    assert errors.count(ErrorCode.NONE) == CREATIONS_PER_REQUEST
    assert errors[-5:] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 5
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.retriable
    errors = [topic.error_code for topic in harness.call(request).topics]
    assert set(errors) == {ErrorCode.NONE}


def test_a_topic_that_is_named_by_its_id_is_described_once():
    harness = BrokerHarness()
    topic_id = bytes(harness.create_topic("t", partitions=20).topic_id)
    named = [MetadataRequestTopic(name=f"n{n}", topic_id=topic_id) for n in range(50)]
    named += [MetadataRequestTopic(name=None, topic_id=topic_id)]
    (topic,) = harness.call(MetadataRequest(topics=named), 12).topics
    assert (topic.name, len(topic.partitions)) == ("t", 20)


@pytest.mark.slow
def test_metadata_of_many_topics_is_made_in_steps():
    harness = BrokerHarness(max_partitions=20_000)
    for number in range(30):
        harness.create_topic(f"t{number:02}", partitions=500)
    pending = harness.send(MetadataRequest(topics=None))
    steps = 0
    while not pending.done:
        assert harness.broker.next_deadline_ms == 0
        harness.step()
        steps += 1
    assert steps == 30 * 500 // 10 // 1_000
    topics = pending.response.topics
    assert [(topic.name, len(topic.partitions)) for topic in topics] == [
        (f"t{number:02}", 500) for number in range(30)
    ]
    assert not harness.broker.services.steps


def test_creations_by_one_request_are_made_in_steps():
    harness = BrokerHarness()
    names = [f"t{number}" for number in range(CREATIONS_PER_REQUEST)]
    pending = harness.send(
        MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
    )
    created = [len(harness.broker.services.topics)]
    while not pending.done:
        harness.step()
        created.append(len(harness.broker.services.topics))
    most = STEP_COST // CREATION_COST
    assert max(after - before for before, after in pairwise(created)) == most


def test_a_request_describes_a_bounded_number_of_resources():
    harness = BrokerHarness(max_topics_per_request=3)
    resources = []
    for number in range(5):
        harness.create_topic(f"t{number}")
        resources += [
            DescribeConfigsResource(
                resource_type=2, resource_name=f"t{number}", configuration_keys=None
            )
        ] * (number + 1)
    results = harness.call(DescribeConfigsRequest(resources=resources)).results
    assert [r.resource_name for r in results] == [f"t{number}" for number in range(5)]
    assert [r.error_code for r in results] == [0, 0, 0, *[ErrorCode.POLICY_VIOLATION] * 2]


def test_a_list_offsets_request_searches_a_partition_once():
    harness = BrokerHarness()
    harness.create_topic("t")
    wanted = ListOffsetsPartition(partition_index=0, timestamp=5)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[wanted] * 3)])
    (topic,) = harness.call(request).topics
    assert [p.error_code for p in topic.partitions] == [0, *[ErrorCode.INVALID_REQUEST] * 2]


class CrowdedFiles:
    """A file system that is out of descriptors for a while."""

    def __init__(self, files) -> None:
        self._files = files
        self.full = False

    def open(self, path: str, *, create: bool = False):
        if self.full:
            raise OSError(errno.EMFILE, "Too many open files", path)
        return self._files.open(path, create=create)

    def __getattr__(self, name: str):
        return getattr(self._files, name)


def test_too_many_open_files_is_not_a_broken_disk():
    files = CrowdedFiles(BrokerHarness().files)
    harness = BrokerHarness(files=files)
    harness.create_topic("t", partitions=2)
    harness.produce("t", b"a")
    files.full = True
    assert harness.produce("t", b"b", partition=1).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.produce("t", b"b", partition=0).error_code == ErrorCode.NONE
    assert not harness.broker.failed
    ((level, fields),) = [
        (level, fields)
        for level, event, fields in harness.journal.lines
        if event == "too_many_open_files"
    ]
    assert level == "warning", "an error would be logged with a traceback, for each append"
    assert "ulimit -n" in str(fields["remedy"])
    files.full = False
    assert harness.produce("t", b"b", partition=1).base_offset == 0


def test_appends_refused_without_file_descriptors_do_not_delay_the_sync():
    files = CrowdedFiles(BrokerHarness().files)
    harness = BrokerHarness(files=files)
    harness.create_topic("t", partitions=2, headrace_durability="os")
    assert harness.produce("t", b"a").error_code == ErrorCode.NONE
    assert not harness.broker.sync_due
    files.full = True
    assert harness.produce("t", b"b", partition=1).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.broker.sync_due


def test_a_fetch_reads_a_repeated_partition_once_by_its_last_occurrence():
    harness = BrokerHarness()
    harness.create_topic("t", partitions=2)
    for value in (b"a", b"b"):
        harness.produce("t", value)
    request = fetch_request(("t", 0, 0), ("t", 1, 0), ("t", 0, 1), ("t", 0, 1), max_wait_ms=0)
    for epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        request.session_epoch = epoch
        (topic,) = harness.call(request).responses
        assert [p.partition_index for p in topic.partitions] == [0, 1]
        records = read_records(topic.partitions[0].records)
        assert [record.value for record in records] == [b"b"]


@pytest.mark.parametrize("waits", [False, True])
def test_a_fetch_of_many_partitions_is_read_in_steps(*, waits: bool):
    harness = BrokerHarness(max_partitions=20_000)
    harness.create_topic("t", partitions=5_000)
    wanted = [("t", index, 0) for index in range(5_000)]
    pending = harness.send(fetch_request(*wanted, max_wait_ms=1_000 if waits else 0))
    steps = 0
    while harness.step():
        steps += 1
    assert steps == 16
    assert pending.done is not waits
    if waits:
        harness.produce("t", b"a", partition=4_321)
        assert not pending.done
        while harness.step():
            steps += 1
        assert steps == 32
    (topic,) = pending.response.responses
    assert [p.partition_index for p in topic.partitions] == list(range(5_000))
    assert [p.partition_index for p in topic.partitions if p.records] == [4_321] * waits


def many_batches(partitions: int, acks: int) -> ProduceRequest:
    data = [
        PartitionProduceData(index=index, records=batch(b"%d" % index))
        for index in range(partitions)
    ]
    return ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name="t", partition_data=data)],
    )


@pytest.mark.slow
@pytest.mark.parametrize("acks", [-1, 0])
def test_records_of_many_partitions_are_appended_in_steps(acks: int):
    harness = BrokerHarness(max_partitions=20_000)
    harness.create_topic("t", partitions=2_500)
    session = Session()
    pending = harness.send(many_batches(2_500, acks), session=session)
    steps = 0
    while session.busy:
        assert harness.step()
        steps += 1
    assert steps == 2_500 // 13
    if acks:
        while harness.sync():
            pass
        (topic,) = pending.response.responses
        assert [(p.index, p.error_code) for p in topic.partition_responses] == [
            (index, 0) for index in range(2_500)
        ]
    else:
        assert pending.silent
        while harness.sync():
            pass
    (record,) = read_records(harness.fetch("t", 0, 2_499).records)
    assert record.value == b"2499"


def test_files_of_many_partitions_are_created_in_steps():
    harness = BrokerHarness()
    harness.create_topic("t", partitions=200)
    session, other = Session(), Session()
    harness.send(many_batches(25, -1), session=other)
    assert not other.busy
    pending = harness.send(many_batches(200, -1), session=session)
    directories = len(harness.files.list(""))
    while session.busy:
        harness.step()
        created = len(harness.files.list("")) - directories
        assert created <= 26
        directories += created
    harness.sync()
    (topic,) = pending.response.responses
    assert [part.error_code for part in topic.partition_responses] == [0] * 200
    harness.send(many_batches(200, -1), session=other)
    assert not other.busy


def test_a_group_commit_is_of_a_bounded_number_of_logs():
    harness = BrokerHarness(max_partitions=20_000)
    harness.create_topic("t", partitions=2_500)
    session = Session()
    pending = harness.send(many_batches(2_500, -1), session=session)
    while session.busy:
        harness.step()
    sizes = []
    while not pending.done:
        commit = harness.broker.start_sync()
        assert commit is not None
        sizes.append(len(commit.tasks))
        commit.run()
        harness.broker.finish_sync(commit, None, harness.now_ms)
    assert sizes == [500] * 5
    assert harness.broker.start_sync() is None


def test_a_failed_step_of_a_request_without_a_response_closes_the_connection():
    harness = BrokerHarness(max_partitions=20_000)
    harness.create_topic("t", partitions=1_500)
    request = many_batches(1_501, 0)  # one partition that does not exist
    pending = harness.send(request)
    while harness.step():
        pass
    assert isinstance(pending.raised, CloseConnection)


def keyed_batches(partitions: int) -> ProduceRequest:
    records = [(b"k", bytes(100_000), (), 5)] * 10
    data = [
        PartitionProduceData(
            index=index, records=build_batch(records, compression=Compression.GZIP)
        )
        for index in range(partitions)
    ]
    topic = TopicProduceData(name="t", partition_data=data)
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


@pytest.mark.parametrize(
    ("configs", "stays"),
    [
        ({"cleanup_policy": "compact"}, False),
        ({"headrace_ttl_enable": "true"}, False),
        ({"headrace_delay_enable": "true"}, False),
        ({}, True),
    ],
)
def test_small_batches_that_are_much_work_are_appended_in_steps(configs, *, stays: bool):
    harness = BrokerHarness()
    harness.create_topic("t", partitions=40, **configs)
    for index in range(40):  # which creates the files
        request = produce_request("t", index, build_batch([(b"k", b"", (), 5)]))
        assert not harness.call(request).responses[0].partition_responses[0].error_code
    request = keyed_batches(40)
    sizes = [len(data.records or b"") for data in request.topic_data[0].partition_data]
    assert sum(sizes) < 100_000
    session = Session()
    pending = harness.send(request, session=session)
    assert session.busy == (not stays)
    ticks = 0
    while session.busy:
        assert not pending.done
        before = METER.decompressed
        harness.broker.tick(harness.now_ms)
        assert METER.decompressed - before <= STEP_COST + 1_100_000
        ticks += 1
    assert stays or ticks >= 40 * 1_000_000 // STEP_COST - 1
    while harness.sync():
        pass
    (topic,) = pending.response.responses
    assert [part.error_code for part in topic.partition_responses] == [0] * 40


def test_a_fetch_does_not_wait_for_a_topic_deleted_between_two_steps():
    harness = BrokerHarness()
    harness.create_topic("t", partitions=40, cleanup_policy="compact")
    session = Session()
    pending = harness.send(keyed_batches(40), session=session)
    assert not pending.done
    harness.call(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 4)
    while session.busy:
        harness.broker.tick(harness.now_ms)
    (topic,) = pending.response.responses
    errors = {part.error_code for part in topic.partition_responses}
    assert errors == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("size", [LARGE_REQUEST_BYTES, LARGE_REQUEST_BYTES + 1])
def test_only_the_work_of_a_large_request_begins_in_the_next_iteration(size: int) -> None:
    harness = BrokerHarness()
    request = DescribeConfigsRequest(resources=[])
    header = RequestHeader(request.API_KEY, 4, 1, "test")
    context = RequestContext(
        harness.now_ms, header, "127.0.0.1:5", "127.0.0.1", 9092, request_bytes=size
    )
    reply = harness.broker.handle(context, request)
    assert isinstance(reply, Deferred) is (size > LARGE_REQUEST_BYTES)
    if isinstance(reply, Deferred):
        assert harness.step()
        reply = reply.value
    assert isinstance(reply, DescribeConfigsResponse)
    assert reply.results == []


@pytest.mark.slow
def test_configurations_that_a_response_omits_count_as_work() -> None:
    harness = BrokerHarness()
    names = [f"t{number}" for number in range(1_000)]
    for name in names:
        harness.create_topic(name)
    resources = [
        DescribeConfigsResource(
            resource_type=2, resource_name=name, configuration_keys=["retention.ms"]
        )
        for name in names
    ]
    pending = harness.send(DescribeConfigsRequest(resources=resources))
    steps = 0
    while not pending.done:
        assert harness.step()
        steps += 1
    assert steps >= 4
    assert [len(result.configs) for result in pending.response.results] == [1] * len(names)
