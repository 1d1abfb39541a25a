"""Group members that behave like client libraries, one step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.core.coordinator.state.consumer_group import LEFT_STATIC_EPOCH
from headrace.core.coordinator.state.subscription import read_subscription
from headrace.errors import ErrorCode
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tests.fixtures.broker_harness import BrokerHarness, Pending
from tests.simulation.groups import requests
from tests.simulation.groups.history import FENCED, GONE
from tests.simulation.groups.requests import Partition

SESSION_MS = 10_000
REBALANCE_MS = 20_000


class ClassicMember:
    """A member of the classic protocol with the range assignor. It releases all partitions when it joins.

    Attributes:
        owned: The partitions that the member reads.
        answers: The errors that the member received, for the message of a failure.
    """

    def __init__(
        self, harness: BrokerHarness, group: str, instance: str | None, topics: Sequence[str]
    ) -> None:
        self.group = group
        self.owned: set[Partition] = set()
        self.answers: list[tuple[str, int]] = []
        self._harness = harness
        self.instance = instance
        self.topics = list(topics)
        self.regex = None
        self._member_id = ""
        self._generation = -1
        self._pending: tuple[Pending, Any] | None = None
        self._is_member = False

    def step(self) -> None:
        """Take the response to the last request, and send the next request."""
        for _ in range(4):
            if self._pending is None:
                self._ask()
            assert self._pending is not None, "set by _ask"
            pending, take = self._pending
            while self._harness.sync():
                pass
            if not pending.done:
                return
            self._pending = None
            take(pending.response)
            if self._is_member:
                return

    def leave(self) -> None:
        """Leave the group. A static member sends no request, because it will come back."""
        if self.instance is None and self._member_id:
            leaving = MemberIdentity(member_id=self._member_id)
            self._harness.call(LeaveGroupRequest(group_id=self.group, members=[leaving]))

    def _ask(self) -> None:
        if self._is_member:
            request: Any = HeartbeatRequest(
                group_id=self.group,
                generation_id=self._generation,
                member_id=self._member_id,
                group_instance_id=self.instance,
            )
            self._send(request, 4, self._beaten)
            return
        self.owned = set()
        request = requests.join(
            self.group,
            self._member_id,
            self.instance,
            topics=self.topics,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
        )
        self._send(request, 5, self._joined)

    def _send(self, request: Any, version: int, take: Any) -> None:
        self._pending = self._harness.send(request, version), take

    def _joined(self, response: Any) -> None:
        if response.error_code != ErrorCode.NONE:
            self._failed("join", response.error_code)
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = response.member_id
            return
        self._member_id, self._generation = response.member_id, response.generation_id
        given: dict[str, list[Partition]] = {}
        if response.leader == self._member_id:
            given = self._assign(response.members)
        request = requests.sync(
            self.group,
            self._member_id,
            self.instance,
            self._generation,
            requests.assignments(given),
        )
        self._send(request, 4, self._synced)

    def _assign(self, members: Sequence[Any]) -> dict[str, list[Partition]]:
        """Divide each topic among its subscribers. The metadata is current, as the protocol requires of a leader."""
        wanted: dict[str, list[str]] = {}
        for member in members:
            said = read_subscription(bytes(member.metadata))
            for topic in said.topics if said is not None else ():
                wanted.setdefault(topic, []).append(member.member_id)
        given: dict[str, list[Partition]] = {member.member_id: [] for member in members}
        for name, several in wanted.items():
            known = self._harness.broker.services.topics.get(name)
            for index in range(known.partitions_count if known is not None else 0):
                given[several[index % len(several)]].append((name, index))
        return given

    def _synced(self, response: Any) -> None:
        if response.error_code == ErrorCode.NONE:
            self.owned = requests.assigned(response.assignment)
            self._is_member = True
        else:
            self._failed("sync", response.error_code)

    def _beaten(self, response: Any) -> None:
        if response.error_code != ErrorCode.NONE:
            self._failed("heartbeat", response.error_code)

    def _failed(self, what: str, code: int) -> None:
        self.answers.append((what, code))
        self._is_member = False
        if code in GONE:
            self._member_id = ""


class ModernMember:
    """A member of the KIP-848 protocol. It releases revoked partitions at once."""

    def __init__(
        self,
        harness: BrokerHarness,
        group: str,
        instance: str | None,
        member_id: str,
        *,
        topics: Sequence[str] = (),
        regex: str | None = None,
    ) -> None:
        self.group = group
        self.answers: list[tuple[str, int]] = []
        self._harness = harness
        self.instance = instance
        self._member_id = member_id
        self.topics = list(topics)
        self.regex = regex
        self._epoch = 0
        self._owned: requests.Owned = []

    @property
    def owned(self) -> set[Partition]:
        """The partitions that the member reads."""
        found: set[Partition] = set()
        for topic_id, indexes in self._owned:
            topic = self._harness.broker.services.topics.by_id(topic_id)
            name = topic_id.hex() if topic is None else topic.name
            found.update((name, index) for index in indexes)
        return found

    def leave(self) -> None:
        """Leave the group; a static member leaves temporarily."""
        self._harness.call(
            requests.consumer_heartbeat(
                self.group,
                self._member_id,
                self.instance,
                -1 if self.instance is None else LEFT_STATIC_EPOCH,
                None,
                rebalance_timeout_ms=-1,
            )
        )

    def step(self) -> None:
        """Send a heartbeat, and take its response."""
        joining = self._epoch == 0
        response = self._harness.call(
            requests.consumer_heartbeat(
                self.group,
                self._member_id,
                self.instance,
                self._epoch,
                self._owned,
                rebalance_timeout_ms=REBALANCE_MS if joining else -1,
                subscribed_topic_names=self.topics if joining else None,
                subscribed_topic_regex=self.regex if joining else None,
            )
        )
        if response.error_code == ErrorCode.NONE:
            self._epoch = response.member_epoch
            if response.assignment is not None:
                self._owned = [
                    (each.topic_id, list(each.partitions))
                    for each in response.assignment.topic_partitions
                ]
            return
        self.answers.append(("heartbeat", response.error_code))
        if response.error_code in FENCED:
            self._epoch, self._owned = 0, []
