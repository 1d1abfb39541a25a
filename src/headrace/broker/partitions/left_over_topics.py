"""Completes deletions of topics that a crash, or a missing log directory, has interrupted."""

from __future__ import annotations

from collections.abc import Container

from headrace.broker.partitions.partition_deletion import PartitionDeletion
from headrace.broker.partitions.topic_store import TopicStore
from headrace.ports import Journal
from headrace.types import TopicPartition


def finish_deletions(
    store: TopicStore, deletion: PartitionDeletion, names: Container[str], journal: Journal
) -> None:
    """Remove the files of deleted topics, and the tombstones of those without files.

    Args:
        store: The topics in the metadata store.
        deletion: Deletes partitions.
        names: The names of the topics that exist.
        journal: Receives the log events.
    """
    for tombstone in store.tombstones():
        name = tombstone.name
        all_gone = deletion.delete_left_over(
            [TopicPartition(name, index) for index in range(tombstone.partitions_count)],
            tombstone.topic_id,
            name_is_free=name not in names,
        )
        if all_gone:
            store.remove_tombstone(tombstone.topic_id)
            journal.info("topic_deletion_finished", topic=name)
