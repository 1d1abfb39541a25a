"""A metadata store that answers late: requests wait without blocking the broker, and take effect once or never."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker.metadata import commit_lane
from headrace.broker.metadata.commit_lane import COMMIT_TIMEOUT_MS, CommitError, CommitLane
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.metadata.store_client import StoreClient
from headrace.core.cluster.image import Changes
from headrace.core.cluster.records import ClientQuotaRecord, encode
from headrace.deferred import Deferred
from headrace.errors import ErrorCode, StorageError
from headrace.metadata_stores.memory import MemoryMetadata, MemoryMetadataStore
from headrace.metadata_stores.sessions import Fault, SimulatedMetadataStore, Timeline, at_once
from headrace.ports import Check, Conflict, Put
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.fixtures.broker_harness import START_MS, BrokerHarness, Pending, RecordingJournal
from tests.fixtures.metadata_stores import stored

NONE, UNKNOWN = ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT
NOT_STORED = ErrorCode.KAFKA_STORAGE_ERROR


IN_LANE = "in-lane"
"""The client whose quota `set_quota_in_lane` changes."""


class SlowHarness(BrokerHarness):
    """A broker whose messages to and from the metadata store take time."""

    metadata: SimulatedMetadataStore  # type: ignore[mutable-override]  # only this class sets it

    def __init__(self, **options: Any) -> None:
        self.now_ms = START_MS
        self.content = MemoryMetadata()
        self.timeline = Timeline(lambda: self.now_ms)
        self.delay_ms: Callable[[], int] = at_once
        self.earlier: list[SimulatedMetadataStore] = []
        """The sessions of killed processes, which may still have commits on the way."""
        self.in_force_when_answered: set[int] = set()
        """The quotas that were in force before their responses."""
        self.in_force_when_answered_in_lane: set[int] = set()
        """The quotas of `set_quota_in_lane` that were in force before their results."""
        super().__init__(metadata=self._session(), **options)
        self.create_topic("t")

    def _session(self) -> SimulatedMetadataStore:
        return SimulatedMetadataStore(self.content, self.timeline, delay_ms=self._next_delay_ms)

    def _next_delay_ms(self) -> int:
        return self.delay_ms()

    def kill(self) -> None:
        """End the process, and start another one with a session of its own."""
        self.earlier.append(self.metadata)
        self.metadata = self._session()
        self.crash()

    def land(self) -> int:
        """Let the late commits of all sessions arrive."""
        return sum(store.land() for store in (*self.earlier, self.metadata))

    def advance(self, milliseconds: int) -> None:
        end_ms = self.now_ms + milliseconds
        while True:
            deadlines = (self.broker.next_deadline_ms, self.timeline.next_deadline_ms)
            due_ms = min((each for each in deadlines if each is not None), default=end_ms + 1)
            if due_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, due_ms)
            self.timeline.run()
            self.broker.tick(self.now_ms)
        self.now_ms = end_ms

    def set_quota(self, value: int, client_id: str = "c") -> Pending:
        row = AlterClientQuotasRequestEntryData(
            entity=[
                AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name=client_id)
            ],
            ops=[OpData(key="producer_byte_rate", value=float(value))],
        )
        request = AlterClientQuotasRequest(entries=[row])
        return self.send(request, then=lambda: self._answered(value))

    def set_quota_in_lane(self, value: int) -> Deferred[CommitError]:
        """Change another quota by a commit of another lane."""
        record = ClientQuotaRecord({"client-id": IN_LANE}, {"producer_byte_rate": float(value)})
        lane = self.broker.services.metadata.lane("isr")
        result = lane.commit([], [Put(f"quota/client-id={IN_LANE}", encode(record))])

        def completed(_error: CommitError) -> None:
            if value in self.in_force_of(IN_LANE):
                self.in_force_when_answered_in_lane.add(value)

        result.on_done(completed)
        return result

    def _answered(self, value: int) -> None:
        if value in self.in_force:
            self.in_force_when_answered.add(value)

    @property
    def quotas(self) -> list[int]:
        """The quotas in force."""
        return [int(rate) for _, rates in self.broker.quotas for rate in rates.values()]

    @property
    def in_force(self) -> list[int]:
        """The quotas that requests have put in force, in order."""
        return self.in_force_of("c")

    def in_force_of(self, client_id: str) -> list[int]:
        """Return the quotas of a client that came into force while a process ran, in order."""
        return [
            int(rate)
            for _, event, fields in self.journal.lines
            if event == "client_quotas_changed" and f"'{client_id}'" in str(fields["entity"])
            for rate in dict(fields["quotas"]).values()  # type: ignore[call-overload]  # a dictionary
        ]


def code_of(pending: Pending) -> int:
    return int(pending.response.entries[0].error_code)


@pytest.fixture
def harness() -> SlowHarness:
    made = SlowHarness()
    made.advance(0)
    made.delay_ms = lambda: 100
    return made


def test_a_request_waits_for_the_store_and_the_broker_serves_others(harness: SlowHarness) -> None:
    pending = harness.set_quota(5)
    assert pending.waits
    assert harness.produce("t", b"a").error_code == NONE
    harness.advance(150)
    assert pending.waits
    assert harness.quotas == []
    harness.advance(50)
    assert code_of(pending) == NONE
    assert harness.quotas == [5]


@pytest.mark.parametrize("seed", range(20))
def test_a_response_is_sent_when_the_image_has_the_change(harness: SlowHarness, seed: int) -> None:
    """The outcome of a commit may arrive before or after its notification."""
    chance = random.Random(seed)
    harness.delay_ms = lambda: chance.choice([0, 10, 1000])
    for value in range(1, 6):
        pending = harness.set_quota(value)
        while pending.waits:
            harness.advance(1)
        assert code_of(pending) == NONE
        assert harness.quotas == [value]


def test_commits_wait_for_each_other_and_are_applied_in_order(harness: SlowHarness) -> None:
    waiting = [harness.set_quota(value) for value in range(1, 6)]
    harness.advance(200)
    assert [each.done for each in waiting] == [True, False, False, False, False]
    harness.advance(800)
    assert [code_of(each) for each in waiting] == [NONE] * 5
    assert harness.in_force == [1, 2, 3, 4, 5]


def test_a_waiting_commit_whose_client_has_gone_is_applied(harness: SlowHarness) -> None:
    harness.set_quota(1)
    harness.set_quota(2).cancel()
    harness.advance(1000)
    assert harness.quotas == [2]


def test_too_many_waiting_commits_are_refused(
    harness: SlowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_lane, "WAITING_LIMIT", 2)
    waiting = [harness.set_quota(value) for value in range(1, 5)]
    assert [each.done for each in waiting] == [False, False, False, True]
    assert code_of(waiting[-1]) == NOT_STORED
    harness.advance(1000)
    assert [code_of(each) for each in waiting[:-1]] == [NONE] * 3
    assert harness.in_force == [1, 2, 3]


def test_a_request_times_out_and_takes_effect_when_its_outcome_arrives(
    harness: SlowHarness,
) -> None:
    harness.delay_ms = lambda: COMMIT_TIMEOUT_MS
    first, second = harness.set_quota(1), harness.set_quota(2)
    harness.advance(COMMIT_TIMEOUT_MS - 1)
    assert first.waits
    harness.advance(1)
    assert code_of(first) == UNKNOWN
    assert code_of(second) == NOT_STORED, "the second commit was never sent"
    assert code_of(harness.set_quota(3)) == UNKNOWN, "no commit is sent before the outcome is known"
    harness.advance(COMMIT_TIMEOUT_MS)
    harness.delay_ms = at_once
    assert code_of(harness.set_quota(4)) == NONE
    harness.advance(COMMIT_TIMEOUT_MS)
    assert harness.in_force == [1, 4]


def test_a_connection_that_breaks_makes_the_outcome_unknown_and_settles_it_later(
    harness: SlowHarness,
) -> None:
    pending = harness.set_quota(1)
    harness.metadata.down = True
    harness.advance(5_000)
    assert code_of(pending) == UNKNOWN
    harness.metadata.down = False
    harness.advance(5_000)
    assert code_of_call(harness, 2) == NONE
    assert harness.in_force in ([2], [1, 2])
    harness.land()
    harness.advance(5_000)
    assert harness.quotas == [2]


def code_of_call(harness: SlowHarness, value: int) -> int:
    pending = harness.set_quota(value)
    while pending.waits:
        harness.advance(10)
    return code_of(pending)


@pytest.mark.parametrize("landed", [False, True])
def test_a_commit_of_a_killed_process_lands_before_the_next_process_or_never(
    harness: SlowHarness, *, landed: bool
) -> None:
    harness.metadata.faults = ["unknown and late", "unknown and void"]
    assert code_of_call(harness, 1) == UNKNOWN
    if landed:
        assert harness.land() == 1
    harness.kill()
    before = harness.quotas
    assert before == ([1] if landed else [])
    assert harness.land() == 0
    harness.advance(1000)
    assert harness.quotas == before


def test_producer_ids_wait_for_a_block_only_if_none_is_left(harness: SlowHarness) -> None:
    def ask() -> Pending:
        return harness.send(InitProducerIdRequest(transactional_id=None))

    first = ask()
    assert first.waits
    harness.advance(200)
    assert first.response.producer_id == 0
    for number in range(1, 2000):
        pending = ask()
        if number % 100 == 0:
            harness.advance(50)
        assert pending.response.producer_id == number


def test_an_init_producer_id_request_times_out_if_the_store_does_not_answer(
    harness: SlowHarness,
) -> None:
    harness.delay_ms = lambda: 10 * COMMIT_TIMEOUT_MS
    pending = harness.send(InitProducerIdRequest(transactional_id=None))
    harness.advance(COMMIT_TIMEOUT_MS)
    assert pending.response.error_code == UNKNOWN


FAULTS: tuple[Fault, ...] = ("none", "unavailable", "unknown and void", "unknown and applied")
FAULTS += ("unknown and late", "doubled")


def disturb(harness: SlowHarness, chance: random.Random) -> None:
    """Let something fail or recover."""
    store, event = harness.metadata, chance.random()
    if event < 0.05:
        store.down = True
    elif event < 0.2:
        store.down = False
    elif event < 0.3:
        harness.land()
    elif event < 0.35:
        store.lose_session()
    elif event < 0.4:
        store.down = False
        harness.kill()


def calm(harness: SlowHarness) -> None:
    """End all faults, and let everything arrive that is in flight."""
    harness.metadata.down, harness.metadata.faults = False, []
    code_of_call(harness, 999)  # renews a session that was lost
    harness.advance(60_000)
    harness.land()
    harness.advance(60_000)


def check_changes(seed: int) -> None:
    """Change two quotas to rising values while the store fails in every way and the process is killed.

    One quota is changed by requests, the other one by commits of another lane.
    """
    chance = random.Random(seed)
    harness = SlowHarness()
    harness.delay_ms = lambda: chance.choice([0, 0, 20, 500])
    pending: dict[int, Pending] = {}
    results: dict[int, Deferred[CommitError]] = {}
    for value in range(1, 30):
        if chance.random() < 0.3:
            harness.metadata.faults.append(chance.choice(FAULTS))
        pending[value] = harness.set_quota(value)
        if chance.random() < 0.5:
            results[value] = harness.set_quota_in_lane(value)
        disturb(harness, chance)
        harness.advance(chance.choice([0, 10, 100, 3_000, 20_000]))
    calm(harness)
    assert code_of_call(harness, 1000) == NONE
    last = harness.set_quota_in_lane(1000)
    harness.advance(60_000)
    assert last.value is None
    harness.land()
    harness.advance(60_000)
    assert harness.quotas == [1000, 1000]
    codes = {value: code_of(each) if each.done else UNKNOWN for value, each in pending.items()}
    check_codes(codes, harness.in_force, harness.in_force_when_answered)
    codes = {value: code_of_result(each) for value, each in results.items()}
    check_codes(codes, harness.in_force_of(IN_LANE), harness.in_force_when_answered_in_lane)


def code_of_result(result: Deferred[CommitError]) -> int:
    if not result.done:
        return UNKNOWN  # the process was killed
    assert not isinstance(result.value, Conflict)
    return NONE if result.value is None else int(result.value.code)


def check_codes(codes: dict[int, int], seen: list[int], in_force_when_answered: set[int]) -> None:
    assert seen == sorted(set(seen)), "once, and in order"
    for value, code in codes.items():
        assert code in {NONE, UNKNOWN, NOT_STORED}
        assert code != NOT_STORED or value not in seen
        assert code != NONE or value in in_force_when_answered


def check_seeds(count: int) -> None:
    for seed in range(count):
        check_changes(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_every_change_takes_effect_once_or_never(seed: int) -> None:
    check_changes(seed)


def test_a_lane_does_not_wait_for_the_unknown_outcome_of_another_lane(harness: SlowHarness) -> None:
    harness.delay_ms = at_once
    harness.metadata.faults = ["unknown and late", "unknown and void"]
    assert code_of(harness.set_quota(1)) == UNKNOWN
    assert code_of(harness.set_quota(2)) == UNKNOWN, "the lane of requests is blocked"
    assert harness.set_quota_in_lane(3).value is None
    assert harness.in_force_of(IN_LANE) == [3]
    harness.metadata.faults = ["unknown and late", "unknown and void"]
    blocked = harness.set_quota_in_lane(4)
    assert code_of_result(blocked) == UNKNOWN
    harness.advance(1_000)
    assert harness.land() == 0
    assert code_of(harness.set_quota(5)) == NONE
    assert harness.set_quota_in_lane(6).value is None
    assert (harness.in_force, harness.in_force_of(IN_LANE)) == ([5], [3, 6])


def test_commits_of_two_lanes_are_in_flight_at_the_same_time(harness: SlowHarness) -> None:
    pending, result = harness.set_quota(1), harness.set_quota_in_lane(2)
    harness.advance(200)
    assert pending.done
    assert result.done


def test_a_lane_writes_nothing_before_its_first_commit(harness: SlowHarness) -> None:
    def entries() -> list[str]:
        return sorted(stored(MemoryMetadataStore(harness.content), "brokers/commit/"))

    harness.delay_ms = at_once
    harness.broker.services.metadata.lane("controller")
    assert entries() == ["brokers/commit/1"]
    assert harness.set_quota_in_lane(1).value is None
    assert entries() == ["brokers/commit/1", "brokers/commit/1/isr"]
    harness.kill()
    assert harness.set_quota_in_lane(2).value is None
    assert harness.quotas == [2]


@pytest.mark.parametrize("has_entry", [False, True])
def test_a_commit_of_a_killed_process_in_any_lane_is_void_when_the_next_process_has_begun(
    harness: SlowHarness, *, has_entry: bool
) -> None:
    harness.delay_ms = at_once
    if has_entry:
        assert harness.set_quota_in_lane(1).value is None
    harness.metadata.faults = ["unknown and late", "unknown and void"]
    assert code_of_result(harness.set_quota_in_lane(2)) == UNKNOWN
    harness.kill()
    assert harness.land() == 0
    assert harness.quotas == ([1] if has_entry else [])


def test_a_process_that_another_one_has_replaced_learns_that_its_commit_is_void() -> None:
    content = MemoryMetadata()
    stores = [SimulatedMetadataStore(content) for _ in range(2)]
    old, new = (
        MetadataWriter(store, 1, bytes([number]), RecordingJournal())
        for number, store in enumerate(stores)
    )
    old.begin()
    stores[0].faults = ["unknown and late", "unknown and void"]
    lane = old.lane("isr")
    unknown = lane.commit([], [Put("a", b"1")])
    assert code_of_result(unknown) == UNKNOWN
    new.begin()
    assert stores[0].land() == 0
    old.tick(1_000)
    assert lane.is_idle
    assert old.next_deadline_ms is None
    assert code_of_result(lane.commit([], [Put("a", b"2")])) == NOT_STORED
    assert code_of_result(new.lane("isr").commit([], [Put("a", b"3")])) == NONE


def test_a_consumer_of_the_image_may_commit(harness: SlowHarness) -> None:
    """Later consumers of a change receive it before the change that an earlier consumer has committed."""
    harness.delay_ms = at_once
    image = harness.broker.services.metadata.image
    results: list[Deferred[CommitError]] = []
    order: list[str] = []

    def commit(changes: Changes[bytes]) -> None:
        if "first" in changes.puts:
            results.append(harness.broker.services.metadata.lane("controller").commit([], [second]))

    second = Put("second", b"2")
    image.consume("", lambda entry: entry.value, commit)
    image.consume("", lambda entry: entry.key, lambda changes: order.extend(changes.puts))
    harness.broker.services.metadata.commit([], [Put("first", b"1")])
    harness.advance(0)
    assert [result.value for result in results] == [None]
    assert [key for key in order if "/" not in key] == ["first", "second"]


def accept_every_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = CommitLane._handle
    monkeypatch.setattr(
        CommitLane,
        "_handle",
        lambda self, _ticket, outcome: handle(self, self._ticket, outcome),
    )


def commit_without_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    def send(self: Any, commit: Any) -> None:
        count = self._count(self._number + 1)
        checks = [*commit.checks, self._client.check]
        outcome = self._client.store.commit(checks, [*commit.operations, count])
        self._number += 1
        self._current = commit
        self._await(outcome)

    monkeypatch.setattr(CommitLane, "_send", send)


def check_no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = property(lambda _: Check("brokers/process/1", "exists"))
    monkeypatch.setattr(StoreClient, "check", claimed)


def make_nothing_void(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_out(self: Any) -> None:
        self._retry_at_ms = None
        if not self._find_in_image():
            self._settle(self._number + 1, self._version)

    monkeypatch.setattr(CommitLane, "_find_out", find_out)


def renew_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreClient, "renew", lambda _: None)


def answer_before_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def complete_stored(self: Any) -> None:
        if self._due_version is not None:
            self._version, self._due_version = self._due_version, None
            self._complete(None)

    monkeypatch.setattr(CommitLane, "_complete_stored", complete_stored)


@pytest.mark.parametrize(
    "leave_out",
    [
        accept_every_outcome,
        commit_without_fence,
        check_no_claim,
        make_nothing_void,
        renew_no_session,
        answer_before_the_image,
    ],
)
def test_without_one_of_the_defences_a_change_is_lost_or_late(
    leave_out: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch)
    with pytest.raises((AssertionError, StorageError)):
        check_seeds(50)


def finish(harness: SlowHarness, pending: Pending) -> None:
    while not pending.done:
        harness.advance(50)


def test_changes_of_topics_wait_for_the_store_without_blocking_the_broker(
    harness: SlowHarness,
) -> None:
    new = CreatableTopic(name="new", num_partitions=2, replication_factor=1)
    more = CreatePartitionsTopic(name="t", count=3, assignments=None)
    smaller = AlterableConfig(name="max.message.bytes", config_operation=0, value="100")
    row = AlterConfigsResource(resource_type=2, resource_name="new", configs=[smaller])
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="new")])
    topics = harness.broker.services.topics
    for request, is_done in (
        (CreateTopicsRequest(topics=[new]), lambda: topics.get("new") is not None),
        (CreatePartitionsRequest(topics=[more]), lambda: topics.require("t").partitions_count == 3),
        (IncrementalAlterConfigsRequest(resources=[row]), lambda: topics.require("new").settings),
        (deletion, lambda: topics.get("new") is None),
    ):
        pending = harness.send(request)
        assert pending.waits
        assert harness.produce("t", b"a").error_code == NONE
        harness.advance(150)
        assert not is_done()
        assert not pending.done
        finish(harness, pending)
        assert is_done()
    assert not stored(MemoryMetadataStore(harness.content), "deleted/")


def test_two_requests_create_one_topic_of_a_name(harness: SlowHarness) -> None:
    new = CreatableTopic(name="new", num_partitions=2, replication_factor=1)
    both = [harness.send(CreateTopicsRequest(topics=[new])) for _ in range(2)]
    harness.advance(1_000)
    codes = [each.response.topics[0].error_code for each in both]
    assert codes == [NONE, ErrorCode.TOPIC_ALREADY_EXISTS]
    assert [topic.name for topic in harness.broker.services.topics] == ["new", "t"]


def test_of_two_requests_that_configure_a_topic_at_once_none_undoes_the_other(
    harness: SlowHarness,
) -> None:
    pending = []
    for name in ("retention.ms", "max.message.bytes"):
        change = AlterableConfig(name=name, config_operation=0, value="100")
        row = AlterConfigsResource(resource_type=2, resource_name="t", configs=[change])
        pending.append(harness.send(IncrementalAlterConfigsRequest(resources=[row])))
    harness.advance(1_000)
    codes = [each.response.responses[0].error_code for each in pending]
    assert codes == [NONE, NONE]
    settings = harness.broker.services.topics.require("t").settings
    assert settings == {"retention.ms": "100", "max.message.bytes": "100"}
