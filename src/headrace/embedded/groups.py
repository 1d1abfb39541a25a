"""`Group`: a consumer group as an object, which `Broker.create_group` and `Broker.group` return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from headrace.clients.admin.core import AdminCore
from headrace.clients.admin.offsets import Reset, ResetTarget
from headrace.clients.arguments import checks_arguments, milliseconds, unchecked
from headrace.clients.config import ClientConfig
from headrace.clients.flows.stopping import DEFAULT_TIMEOUT_S, StopOutcome
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.clients.drivers import Driver
    from headrace.clients.flows.attachments import Attachments
    from headrace.clients.flows.effects import Flow
    from headrace.clients.flows.groups import MemberDescription
    from headrace.clients.flows.offsets import OffsetAndMetadata

T = TypeVar("T")


@checks_arguments
class Group:
    """A group of an embedded broker. The object has only the group's name: each method sends requests to the broker.

    The methods raise the errors of the methods of `headrace.Admin` with the same names.
    """

    @unchecked
    def __init__(self, name: str, driver: Driver) -> None:
        self.name = name
        self._driver = driver
        self._config = ClientConfig()
        self._core = AdminCore(driver.engine.state, self._config)

    def __repr__(self) -> str:
        return f"Group({self.name!r})"

    # Attached topics

    def create(
        self, assignor: str | None, topics: str | Iterable[str] | None, pattern: str | None
    ) -> None:
        """Create the group. The arguments are those of `Broker.create_group`."""
        self._run(self._core.create_group(self.name, assignor, topics, pattern))

    def attach(
        self, topics: str | Iterable[str] | None = None, *, pattern: str | None = None
    ) -> Attachments:
        """Attach further topics, or replace the attached pattern. The members rejoin and read the topics."""
        return self._run(self._core.attach(self.name, topics, pattern))

    def detach(self, topics: str | Iterable[str] | None = None) -> Attachments:
        """Detach topics; None detaches all topics and the pattern. The members rejoin without them."""
        return self._run(self._core.detach(self.name, topics))

    def attachments(self) -> Attachments:
        """Return the attached topics or pattern, and the assignor of the group."""
        return self._run(self._core.attachments(self.name))

    # Members

    def state(self) -> str:
        """Return the state of the group: "Empty", "PreparingRebalance", "CompletingRebalance" or "Stable"."""
        return self._run(self._core.describe_group(self.name)).state

    def members(self) -> list[MemberDescription]:
        """Return the members of the group and their partitions."""
        return self._run(self._core.members(self.name))

    def remove_member(self, member_id: str = "", *, group_instance_id: str | None = None) -> None:
        """Remove a member by its member id or group instance id. A running member joins again: see `stop_member`."""
        self._run(self._core.remove_member(self.name, member_id, group_instance_id))

    def stop_member(
        self,
        member_id: str = "",
        *,
        group_instance_id: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> StopOutcome:
        """Stop one member gracefully: it finishes its records, commits, leaves, and does not join again.

        The call waits for `timeout_s` seconds at most. Then the broker removes the member. Arguments and result are
        those of `Admin.stop_member`.
        """
        timeout_ms = milliseconds(timeout_s, 0)
        flow = self._core.stop_member(
            self.name, member_id, group_instance_id, timeout_ms, self._driver.now_ms
        )
        return self._driver.run(flow, timeout_ms + self._config.request_timeout_ms)

    # Offsets

    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets. The result leaves out partitions without a committed offset."""
        return self._run(self._core.offsets(self.name))

    def lag(self) -> dict[TopicPartition, int]:
        """Return the lag of each partition in records. The result leaves out partitions without a committed offset."""
        return self._run(self._core.lag(self.name))

    def reset_offsets(
        self,
        offsets: Mapping[TopicPartition, int] | None = None,
        *,
        topics: Iterable[str] | None = None,
        partitions: Iterable[TopicPartition] | None = None,
        to: ResetTarget | None = None,
        offset: int | None = None,
        shift: int | None = None,
        dry_run: bool = False,
    ) -> dict[TopicPartition, int]:
        """Set committed offsets. The group must have no members. The arguments are those of `Admin.reset_offsets`."""
        reset = Reset(offsets, topics, partitions, to, offset, shift)
        return self._run(self._core.reset_offsets(self.name, reset, dry_run=dry_run))

    def delete(self) -> None:
        """Delete the group with its committed offsets and attached topics. The group must have no members."""
        self._run(self._core.delete_group(self.name))

    def _run(self, flow: Flow[T]) -> T:
        return self._driver.run(flow)
