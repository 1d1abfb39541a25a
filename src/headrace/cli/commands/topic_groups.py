"""The groups of a topic: with committed offsets for it, with members that read it, or attached to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import ApiError, ConfigError
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.clients.blocking import BlockingClient, ListedOffset


def topic_groups(
    client: BlockingClient, topic: str, ends: Mapping[TopicPartition, ListedOffset]
) -> list[dict[str, Any]]:
    """Return a row for each group, by name; the lag is None without a committed offset."""
    from headrace.clients.flows.attachments import group_attachments

    rows = []
    keeps_attachments = True
    for listing in client.list_groups():
        name = listing.group_id
        try:
            committed = client.committed_offsets(name, ends)
            described = client.describe_groups([name])[name]
        except ApiError:
            continue  # a group of another kind (share, streams), without such offsets or members
        members = sum(
            any(where.topic == topic for where in member.assignment) for member in described.members
        )
        attached = False
        if keeps_attachments:
            try:
                found = client.run(group_attachments(client.state, name))
                attached = found.reads(topic)
            except ConfigError:
                keeps_attachments = False
            except ApiError:
                attached = False  # the client may not describe it
        if not (committed or members or attached):
            continue
        lag = sum(max(0, ends[where].offset - at.offset) for where, at in committed.items())
        rows.append(
            {
                "group": name,
                "state": listing.state,
                "members": members,
                "attached": attached,
                "committed_partitions": len(committed),
                "lag": lag if committed else None,
            }
        )
    return rows
