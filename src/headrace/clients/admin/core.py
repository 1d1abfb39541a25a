"""What `Admin` decides, as flows: topics, records, groups, offsets. One thing at a time, and errors are raised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from headrace.clients.config import ClientConfig, parse_config
from headrace.clients.flows import admin, alter, groups, list_offsets, metadata, offsets
from headrace.clients.flows.admin import ClusterDescription, ConfigEntry, NewTopic, ResourceType
from headrace.clients.flows.alter import ConfigChange, ConfigOperation
from headrace.clients.flows.cluster import TopicMetadata
from headrace.clients.flows.coordinator import ask_coordinator, raise_for
from headrace.clients.flows.effects import ClientState, Flow
from headrace.clients.flows.groups import GroupDescription, GroupListing, MemberDescription
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.clients.flows.topic_settings import KEY_SERDE, PARTITIONER, SERDE
from headrace.errors import ApiError, ConfigError, ErrorCode
from headrace.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from headrace.types import TopicPartition

STORAGE: Final = "headrace.storage"
HIGH_WATERMARK: Final = -1
"""In a request to delete records: all that can be read now."""

Place = Literal["earliest", "latest"] | int
"""Where a group is to go on: the first or the end of the log, or the first record not older than a timestamp."""


def admin_config(target: object, properties: Mapping[str, Any], **named: Any) -> ClientConfig:
    """Return the configuration of an admin client.

    Raises:
        ConfigError: A property is unknown or malformed.
    """
    bootstrap = target if isinstance(target, str) else None
    return parse_config(ClientConfig, properties, bootstrap_servers=bootstrap, **named)


class AdminCore:
    """Flows over one client's state. What they do is told by the methods of `Admin` that run them."""

    def __init__(self, state: ClientState, config: ClientConfig) -> None:
        self._state = state
        self._timeout_ms = config.request_timeout_ms

    # Topics

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        *,
        storage: str | None,
        partitioner: str | None,
        serde: str | None,
        key_serde: str | None,
    ) -> Flow[None]:
        """Create a topic; what is None is left to the broker."""
        named = {STORAGE: storage, PARTITIONER: partitioner, SERDE: serde, KEY_SERDE: key_serde}
        given = {key: value for key, value in named.items() if value is not None}
        topic = NewTopic(name, partitions, replication_factor, {**configs, **given})
        _raise(name, (yield from admin.create_topics(self._state, [topic], self._timeout_ms)))
        self._state.stale_topics.add(name)

    def delete_topic(self, name: str) -> Flow[None]:
        """Delete a topic."""
        _raise(name, (yield from admin.delete_topics(self._state, [name], self._timeout_ms)))

    def add_partitions(self, topic: str, total: int) -> Flow[None]:
        """Raise a topic's number of partitions."""
        counts = {topic: total}
        _raise(topic, (yield from alter.create_partitions(self._state, counts, self._timeout_ms)))

    def topics(self, *, internal: bool) -> Flow[list[str]]:
        """List topics, sorted."""
        known = yield from metadata.refresh(self._state, None)
        return sorted(
            name for name, topic in known.topics.items() if internal or not topic.is_internal
        )

    def describe_topic(self, name: str) -> Flow[TopicMetadata]:
        """Describe a topic as a broker now sees it."""
        self._state.stale_topics.add(name)
        yield from metadata.ensure(self._state, [name])
        return self._state.metadata.topics[name]

    def configs(self, topic: str) -> Flow[dict[str, ConfigEntry]]:
        """Return a topic's configuration by name."""
        found = yield from admin.describe_configs(self._state, ResourceType.TOPIC, [topic])
        return {entry.name: entry for entry in found[topic]}

    def alter_configs(self, topic: str, changes: Mapping[str, str | None]) -> Flow[None]:
        """Set configs of a topic; None takes back what was set."""
        wanted = [
            ConfigChange(
                name, value, ConfigOperation.DELETE if value is None else ConfigOperation.SET
            )
            for name, value in changes.items()
        ]
        outcomes = yield from alter.alter_configs(self._state, ResourceType.TOPIC, {topic: wanted})
        self._state.topic_settings.pop(topic, None)
        _raise(topic, outcomes)

    def truncate(
        self, topic: str, before: int | Mapping[int, int] | None
    ) -> Flow[dict[TopicPartition, int]]:
        """Delete a topic's records below an offset, or all."""
        if isinstance(before, Mapping):
            wanted = {TopicPartition(topic, number): offset for number, offset in before.items()}
        else:
            offset = HIGH_WATERMARK if before is None else before
            wanted = dict.fromkeys((yield from self._partitions([topic])), offset)
        return (yield from alter.delete_records(self._state, wanted, self._timeout_ms))

    def describe_cluster(self) -> Flow[ClusterDescription]:
        """Describe the cluster."""
        return admin.describe_cluster(self._state)

    # Groups

    def groups(self) -> Flow[list[GroupListing]]:
        """List groups."""
        return groups.list_groups(self._state)

    def describe_group(self, group: str) -> Flow[GroupDescription]:
        """Describe a group."""
        found = yield from groups.describe_groups(self._state, [group])
        if found[group].state == "Dead":
            raise ApiError.for_code(ErrorCode.GROUP_ID_NOT_FOUND, f"no group {group!r}")
        return found[group]

    def members(self, group: str) -> Flow[list[MemberDescription]]:
        """List a group's members."""
        return list((yield from self.describe_group(group)).members)

    def remove_member(
        self, group: str, member_id: str, group_instance_id: str | None
    ) -> Flow[None]:
        """Take a member out of its group."""
        identity = MemberIdentity(
            member_id=member_id,
            group_instance_id=group_instance_id,
            reason="removed by an administrator",
        )
        response = yield from ask_coordinator(
            self._state,
            group,
            LeaveGroupRequest(group_id=group, member_id=member_id, members=[identity]),
            LeaveGroupResponse,
            lambda answer: answer.error_code,
        )
        name = group_instance_id or member_id
        code = next((member.error_code for member in response.members if member.error_code), 0)
        raise_for(response.error_code or code, f"member {name!r} of group {group!r}")

    def delete_group(self, group: str) -> Flow[None]:
        """Delete a group that has no members."""
        _raise(group, (yield from alter.delete_groups(self._state, [group])))

    # Offsets

    def offsets(self, group: str) -> Flow[dict[TopicPartition, OffsetAndMetadata]]:
        """Return what a group has committed."""
        return offsets.committed_offsets(self._state, group, None)

    def reset_offsets(
        self,
        group: str,
        offsets_by_partition: Mapping[TopicPartition, int] | None,
        topics: Iterable[str] | None,
        to: Place | None,
    ) -> Flow[dict[TopicPartition, int]]:
        """Commit other offsets for a group without members."""
        if (offsets_by_partition is None) == (topics is None or to is None):
            raise ConfigError("give either offsets, or topics and where to go in them")
        if offsets_by_partition is None:
            assert topics is not None, "checked above"
            assert to is not None, "checked above"
            offsets_by_partition = yield from self._places(topics, to)
        wanted = {
            where: OffsetAndMetadata(offset) for where, offset in offsets_by_partition.items()
        }
        yield from offsets.commit_offsets(self._state, group, wanted)
        return dict(offsets_by_partition)

    def _places(self, topics: Iterable[str], to: Place) -> Flow[dict[TopicPartition, int]]:
        partitions = yield from self._partitions(topics)
        target = {"earliest": list_offsets.EARLIEST, "latest": list_offsets.LATEST}.get(str(to))
        if target is None and not isinstance(to, int):
            raise ConfigError(f"{to!r} is not earliest, latest or a timestamp in milliseconds")
        asked = dict.fromkeys(partitions, int(to) if target is None else target)
        found = yield from list_offsets.list_offsets(self._state, asked)
        later = [where for where, listed in found.items() if listed.offset < 0]
        ends = dict.fromkeys(later, list_offsets.LATEST)
        if ends:  # no record is as young as that: the group goes on with what comes
            found |= yield from list_offsets.list_offsets(self._state, ends)
        return {where: found[where].offset for where in sorted(found)}

    def _partitions(self, topics: Iterable[str]) -> Flow[list[TopicPartition]]:
        names = list(topics)
        self._state.stale_topics.update(names)
        yield from metadata.ensure(self._state, names)
        known = self._state.metadata.topics
        return [TopicPartition(name, number) for name in names for number in known[name].partitions]


def _raise(name: str, outcomes: Mapping[str, ApiError | None]) -> None:
    error = outcomes[name]
    if error is not None:
        raise error
