"""The calls of the asyncio admin client about consumer groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.clients.admin.core import AdminCore
from headrace.clients.admin.offsets import Reset, ResetTarget
from headrace.clients.arguments import checks_arguments, milliseconds
from headrace.clients.config import ClientConfig
from headrace.clients.drivers import AsyncDriver
from headrace.clients.flows.attachments import Attachments
from headrace.clients.flows.groups import GroupDescription, GroupListing, MemberDescription
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.clients.flows.stopping import DEFAULT_TIMEOUT_S, StopOutcome
from headrace.types import TopicPartition


@checks_arguments
class GroupCalls:
    """The part of `Admin` that lists, describes and changes consumer groups and their committed offsets."""

    config: ClientConfig
    _driver: AsyncDriver
    _core: AdminCore

    # Groups

    async def groups(self) -> list[GroupListing]:
        """Return every group of the cluster, sorted by name."""
        return await self._driver.run(self._core.groups())

    async def describe_group(self, group: str) -> GroupDescription:
        """Return a group's state and members.

        Raises:
            ApiError: GROUP_ID_NOT_FOUND.
        """
        return await self._driver.run(self._core.describe_group(group))

    async def members(self, group: str) -> list[MemberDescription]:
        """Return a group's members and the partitions of each.

        Raises:
            ApiError: GROUP_ID_NOT_FOUND.
        """
        return await self._driver.run(self._core.members(group))

    async def remove_member(
        self, group: str, member_id: str = "", *, group_instance_id: str | None = None
    ) -> None:
        """Remove a member from its group. The other members take over its partitions.

        A member that still runs joins again after its next heartbeat. `stop_member` prevents that.

        Args:
            group: The group.
            member_id: The member id, from `members`.
            group_instance_id: The name of a static member, in place of the member id.

        Raises:
            ApiError: UNKNOWN_MEMBER_ID.
        """
        await self._driver.run(self._core.remove_member(group, member_id, group_instance_id))

    async def stop_member(
        self,
        group: str,
        member_id: str = "",
        *,
        group_instance_id: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> StopOutcome:
        """Stop one member gracefully: it finishes its records, commits, leaves the group, and does not join again.

        The response to the member's next heartbeat asks it to stop. The other members take over its partitions. This
        method waits until the member has left. A member that has not left in time is removed by force. This includes
        members of clients that do not support the request; such a member may join again. The method may be repeated.

        Args:
            group: The group.
            member_id: The member id, from `members`.
            group_instance_id: The name of a static member, in place of the member id. Its partitions are not reserved.
            timeout_s: Seconds that the member has to leave.

        Returns:
            "stopped" if the member has left by itself; "removed" if it was removed by force; "gone" if it is no member
            any more for another reason: its session has expired, or the broker was restarted.

        Raises:
            ApiError: UNKNOWN_MEMBER_ID, GROUP_AUTHORIZATION_FAILED; UNSUPPORTED_VERSION if the broker is not Headrace,
                and then nothing has changed.
        """
        timeout_ms = milliseconds(timeout_s, 0)
        flow = self._core.stop_member(
            group, member_id, group_instance_id, timeout_ms, self._driver.now_ms
        )
        return await self._driver.run(flow, timeout_ms + self.config.request_timeout_ms)

    async def delete_group(self, group: str) -> None:
        """Delete a group without members, and its committed offsets.

        Raises:
            ApiError: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND.
        """
        await self._driver.run(self._core.delete_group(group))

    # Attachments of groups to topics

    async def create_group(
        self,
        name: str,
        *,
        assignor: str | None = None,
        topics: str | Iterable[str] | None = None,
        pattern: str | None = None,
    ) -> None:
        """Create a group, and attach it to topics. Members that subscribe without topics read the attached topics.

        Only Headrace stores attachments. On other brokers a group exists from the first subscription of a consumer.

        Args:
            name: The name of the group.
            assignor: The name of the assignor for the group. None is range.
            topics: The topics that the group is attached to. None is none.
            pattern: In place of topics, a regular expression that matches whole names of topics. Without topics and
                pattern, members wait until the group is attached.

        Raises:
            ConfigError: The broker is not Headrace. The message names an alternative.
            ApiError: INVALID_REQUEST: the group exists. INVALID_CONFIG: a name or the pattern is malformed.
        """
        await self._driver.run(self._core.create_group(name, assignor, topics, pattern))

    async def attach(
        self,
        group: str,
        topics: str | Iterable[str] | None = None,
        *,
        pattern: str | None = None,
    ) -> Attachments:
        """Attach a group to more topics, or to a pattern in place of the previous one. Its members rejoin to read them.

        Args:
            group: The group.
            topics: The topics. They need not exist yet.
            pattern: In place of topics, a regular expression that matches whole names of topics.

        Returns:
            All attachments of the group.

        Raises:
            ConfigError: The broker is not Headrace.
            ApiError: GROUP_ID_NOT_FOUND. INVALID_CONFIG: topics and a pattern exclude each other.
        """
        return await self._driver.run(self._core.attach(group, topics, pattern))

    async def detach(self, group: str, topics: str | Iterable[str] | None = None) -> Attachments:
        """Detach a group from topics, or with None from all topics and the pattern. Its members rejoin without them.

        The committed offsets stay. They apply when the group is attached again.

        Returns:
            All attachments of the group.

        Raises:
            ConfigError: The broker is not Headrace.
            ApiError: GROUP_ID_NOT_FOUND. UNKNOWN_TOPIC_OR_PARTITION: the group is not attached to one of the topics.
        """
        return await self._driver.run(self._core.detach(group, topics))

    async def attachments(self, group: str) -> Attachments:
        """Return the attachments of a group; they are empty if the group was never attached.

        Raises:
            ConfigError: The broker is not Headrace.
        """
        return await self._driver.run(self._core.attachments(group))

    # Offsets

    async def offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group, by partition."""
        return await self._driver.run(self._core.offsets(group))

    async def lag(self, group: str) -> dict[TopicPartition, int]:
        """Return how many records follow the committed offset of each partition that has one."""
        return await self._driver.run(self._core.lag(group))

    async def reset_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int] | None = None,
        *,
        topics: Iterable[str] | None = None,
        partitions: Iterable[TopicPartition] | None = None,
        to: ResetTarget | None = None,
        offset: int | None = None,
        shift: int | None = None,
        dry_run: bool = False,
    ) -> dict[TopicPartition, int]:
        """Change the committed offsets of a group without members.

        Give `offsets`; or choose partitions by `topics` or `partitions`, and their offsets by one of `to`, `offset` and
        `shift`.

        Args:
            group: The group. It is created if it does not exist.
            offsets: The new committed offset of each partition.
            topics: The topics of which all partitions are changed.
            partitions: The partitions to change. Without topics and partitions, all that have a committed offset are
                changed.
            to: "earliest", "latest", or a time in milliseconds since 1970: the first record that is not older.
            offset: The new offset, limited to the begin and the end of the log.
            shift: The number of offsets to move forward, or backward if it is negative, within the log.
            dry_run: Return what would be committed, and commit nothing.

        Returns:
            The offsets that were committed.

        Raises:
            ConfigError: The arguments contradict each other, or no partition is chosen.
            ApiError: UNKNOWN_MEMBER_ID: the group has members.
        """
        reset = Reset(offsets, topics, partitions, to, offset, shift)
        return await self._driver.run(self._core.reset_offsets(group, reset, dry_run=dry_run))
