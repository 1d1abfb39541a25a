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
        """Return a group's members and what each reads.

        Raises:
            ApiError: GROUP_ID_NOT_FOUND.
        """
        return await self._driver.run(self._core.members(group))

    async def remove_member(
        self, group: str, member_id: str = "", *, group_instance_id: str | None = None
    ) -> None:
        """Take a member out of its group; the others take over what it read.

        A member that is alive joins again with its next heartbeat: see `stop_member`.

        Args:
            group: The group.
            member_id: The member, as `members` tells.
            group_instance_id: The name of a static member, instead.

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
        """Stop one member gracefully: it finishes what it works on, commits, leaves, and does not join again.

        It hears of that with its next heartbeat. The others take over what it read. The call waits until it has left.
        A member that has not left in time is removed by force, also one of another client that does not know the
        message; such a member may join again. Calling it again is harmless.

        Args:
            group: The group.
            member_id: The member, as `members` tells.
            group_instance_id: The name of a static member, instead. Its place is not kept.
            timeout_s: Seconds that the member has.

        Returns:
            "stopped" if the member has left by itself, "removed" if it was removed by force, and "gone" if it is no
            member any more and the broker does not know why: its session has ended, or the broker was restarted.

        Raises:
            ApiError: UNKNOWN_MEMBER_ID, GROUP_AUTHORIZATION_FAILED; UNSUPPORTED_VERSION where the broker is not
                Headrace, and then nothing has changed.
        """
        timeout_ms = milliseconds(timeout_s, 0)
        flow = self._core.stop_member(
            group, member_id, group_instance_id, timeout_ms, self._driver.now_ms
        )
        return await self._driver.run(flow, timeout_ms + self.config.request_timeout_ms)

    async def delete_group(self, group: str) -> None:
        """Delete a group without members, and what it has committed.

        Raises:
            ApiError: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND.
        """
        await self._driver.run(self._core.delete_group(group))

    # What groups are attached to

    async def create_group(
        self,
        name: str,
        *,
        assignor: str | None = None,
        topics: str | Iterable[str] | None = None,
        pattern: str | None = None,
    ) -> None:
        """Create a group; members that subscribe to nothing themselves read what it is attached to.

        Only Headrace keeps such a thing. On other brokers a group comes into being when its first consumer subscribes.

        Args:
            name: Its name.
            assignor: The name of the assignor that divides its partitions; None is range.
            topics: The topics that it is attached to, or
            pattern: a regular expression that matches their whole names. With neither, members wait.

        Raises:
            ConfigError: The broker is not Headrace; the text says what to do instead.
            ApiError: INVALID_REQUEST: it was created before. INVALID_CONFIG: a name or the pattern is malformed.
        """
        await self._driver.run(self._core.create_group(name, assignor, topics, pattern))

    async def attach(
        self,
        group: str,
        topics: str | Iterable[str] | None = None,
        *,
        pattern: str | None = None,
    ) -> Attachments:
        """Attach a group to more topics, or to a pattern in place of the one before; its members rejoin and read them.

        Args:
            group: The group.
            topics: The topics, which need not exist yet, or
            pattern: a regular expression that matches their whole names.

        Returns:
            What the group is attached to now.

        Raises:
            ConfigError: The broker is not Headrace.
            ApiError: GROUP_ID_NOT_FOUND. INVALID_CONFIG: topics and a pattern exclude each other.
        """
        return await self._driver.run(self._core.attach(group, topics, pattern))

    async def detach(self, group: str, topics: str | Iterable[str] | None = None) -> Attachments:
        """Detach a group from topics, or with None from everything; its members rejoin and read them no more.

        What it has committed stays, and counts when it is attached again.

        Returns:
            What the group is attached to now.

        Raises:
            ConfigError: The broker is not Headrace.
            ApiError: GROUP_ID_NOT_FOUND. UNKNOWN_TOPIC_OR_PARTITION: it is not attached to one of them.
        """
        return await self._driver.run(self._core.detach(group, topics))

    async def attachments(self, group: str) -> Attachments:
        """Return what a group is attached to; to nothing, if nobody has attached it.

        Raises:
            ConfigError: The broker is not Headrace.
        """
        return await self._driver.run(self._core.attachments(group))

    # Offsets

    async def offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what a group has committed; a partition without a commit is left out."""
        return await self._driver.run(self._core.offsets(group))

    async def lag(self, group: str) -> dict[TopicPartition, int]:
        """Return how many records a group has still to finish; a partition without a commit is left out."""
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
        """Have a group without members go on elsewhere.

        Args:
            group: The group; created if there is none.
            offsets: Partition to the offset of the next record; or:
            topics: The topics of which all partitions are moved, or
            partitions: the partitions; with neither, all for which the group has committed something;
            to: to "earliest", "latest", or the first record not older than a timestamp in milliseconds since 1970, or
            offset: to this offset, or the end of the log that is nearer, or
            shift: by as many offsets, back if it is negative, as far as the log reaches.
            dry_run: Tell what would be committed, and commit nothing.

        Returns:
            What was committed.

        Raises:
            ConfigError: What is asked for contradicts itself, or there is nothing to move.
            ApiError: UNKNOWN_MEMBER_ID: the group has members.
        """
        reset = Reset(offsets, topics, partitions, to, offset, shift)
        return await self._driver.run(self._core.reset_offsets(group, reset, dry_run=dry_run))
