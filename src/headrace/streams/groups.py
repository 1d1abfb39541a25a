"""A consumer group as an object: what `Broker.create_group` and `Broker.group` return."""

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
    """A group of an embedded broker, by its name; it holds nothing, and every method asks the broker.

    Errors are as of the methods of `headrace.Admin` that are called the same.
    """

    @unchecked
    def __init__(self, name: str, driver: Driver) -> None:
        self.name = name
        self._driver = driver
        self._config = ClientConfig()
        self._core = AdminCore(driver.engine.state, self._config)

    def __repr__(self) -> str:
        return f"Group({self.name!r})"

    # What it reads

    def create(
        self, assignor: str | None, topics: str | Iterable[str] | None, pattern: str | None
    ) -> None:
        """Create it; the arguments are those of `Broker.create_group`."""
        self._run(self._core.create_group(self.name, assignor, topics, pattern))

    def attach(
        self, topics: str | Iterable[str] | None = None, *, pattern: str | None = None
    ) -> Attachments:
        """Attach the group to more topics, or to a pattern in place of the one before; members rejoin and read them."""
        return self._run(self._core.attach(self.name, topics, pattern))

    def detach(self, topics: str | Iterable[str] | None = None) -> Attachments:
        """Detach the group from topics, or with None from everything; members rejoin and read them no more."""
        return self._run(self._core.detach(self.name, topics))

    def attachments(self) -> Attachments:
        """Return what the group is attached to, and its assignor."""
        return self._run(self._core.attachments(self.name))

    # Who is in it

    def state(self) -> str:
        """Return its state: "Empty", "PreparingRebalance", "CompletingRebalance" or "Stable"."""
        return self._run(self._core.describe_group(self.name)).state

    def members(self) -> list[MemberDescription]:
        """Return its members and what each reads."""
        return self._run(self._core.members(self.name))

    def remove_member(self, member_id: str = "", *, group_instance_id: str | None = None) -> None:
        """Take a member out, by its id or its static name; one that is alive joins again (see `stop_member`)."""
        self._run(self._core.remove_member(self.name, member_id, group_instance_id))

    def stop_member(
        self,
        member_id: str = "",
        *,
        group_instance_id: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> StopOutcome:
        """Stop one member gracefully: it finishes, commits, leaves, and does not join again.

        The call waits for that, for `timeout_s` seconds at most; then the member is removed by force. Arguments and
        what is returned are those of `Admin.stop_member`.
        """
        timeout_ms = milliseconds(timeout_s, 0)
        flow = self._core.stop_member(
            self.name, member_id, group_instance_id, timeout_ms, self._driver.now_ms
        )
        return self._driver.run(flow, timeout_ms + self._config.request_timeout_ms)

    # How far it is

    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what it has committed; a partition without a commit is left out."""
        return self._run(self._core.offsets(self.name))

    def lag(self) -> dict[TopicPartition, int]:
        """Return how many records it has still to finish; a partition without a commit is left out."""
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
        """Have it go on elsewhere; it must not have members. The arguments are those of `Admin.reset_offsets`."""
        reset = Reset(offsets, topics, partitions, to, offset, shift)
        return self._run(self._core.reset_offsets(self.name, reset, dry_run=dry_run))

    def delete(self) -> None:
        """Delete it, what it has committed, and what it is attached to; it must not have members."""
        self._run(self._core.delete_group(self.name))

    def _run(self, flow: Flow[T]) -> T:
        return self._driver.run(flow)
