"""The records of a cluster, and an admin client, for tests that bring no clients of their own."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

from headrace.clients.admin.blocking import Admin
from headrace.clients.consumer.blocking import Consumer
from headrace.clients.consumer.records import ConsumerRecord
from headrace.clients.producer.blocking import Producer
from headrace.clients.producer.delivery import RecordMetadata
from headrace.serdes.serde import Serde
from headrace.testing.broker import WAIT_S
from headrace.types import TopicPartition

_POLL_S: Final = 0.2


class ClusterContents:
    """The part of `Cluster` that writes and reads records. Its clients connect when they are first used."""

    bootstrap: str

    def __init__(self, properties: Mapping[str, Any]) -> None:
        """Begin without clients.

        Args:
            properties: The properties of the clients.
        """
        self.properties = dict(properties)
        self._clients = ExitStack()
        self._opening = threading.Lock()
        self._own_admin: Admin | None = None
        self._own_producer: Producer | None = None

    @property
    def admin(self) -> Admin:
        """A `headrace.Admin` of the cluster, which closes with it."""
        with self._opening:
            if self._own_admin is None:
                self._own_admin = self._clients.enter_context(
                    Admin(self.bootstrap, **self.properties)
                )
            return self._own_admin

    @property
    def _producer(self) -> Producer:
        with self._opening:
            if self._own_producer is None:
                self._own_producer = self._clients.enter_context(
                    Producer(self.bootstrap, **self.properties)
                )
            return self._own_producer

    def _close_clients(self) -> None:
        with self._opening:
            self._own_admin = self._own_producer = None
            self._clients.close()

    def publish(
        self, topic: str, value: Any = None, *, key: Any = None, partition: int | None = None
    ) -> RecordMetadata:
        """Write a record, and return its partition and offset when all in-sync replicas have the record.

        Args:
            topic: The topic. Its serdes are used.
            value: The value.
            key: The key.
            partition: The partition. None lets the partitioner of the topic choose.
        """
        return self._producer.send(topic, value, key=key, partition=partition).result()

    def messages(
        self,
        topic: str,
        partition: int | None = None,
        *,
        serde: str | Serde | None = None,
        key_serde: str | Serde | None = None,
        isolation_level: str = "read_committed",
        timeout_s: float = WAIT_S,
    ) -> list[ConsumerRecord]:
        """Return all records of a topic, or of one of its partitions, up to the high watermarks.

        Partitions are merged by the timestamps of the records. The records of one partition are in offset order.

        Args:
            topic: The topic.
            partition: The partition. None is all partitions.
            serde: The serde of values. None is the serde that the topic's configuration names, or bytes.
            key_serde: The serde of keys. None is the serde that the topic's configuration names, or bytes.
            isolation_level: "read_committed" leaves out records of open and aborted transactions. "read_uncommitted"
                returns all records.
            timeout_s: The time in seconds without a record after which the method gives up.

        Raises:
            TimeoutError: A partition could not be read to its end. The message says which.
        """
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        with Consumer(
            self.bootstrap,
            serde=serde,
            key_serde=key_serde,
            isolation_level=isolation_level,
            auto_offset_reset="earliest",
            **self.properties,
        ) as consumer:
            wheres = consumer.partitions_for(topic)
            if partition is not None:
                wheres = [TopicPartition(topic, partition)]
            ends = consumer.end_offsets(wheres)
            consumer.assign(wheres)
            deadline_s = time.monotonic() + timeout_s
            while left := [each for each in wheres if consumer.position(each) < ends[each]]:
                if time.monotonic() > deadline_s:
                    unread = ", ".join(f"{each} up to offset {ends[each]}" for each in left)
                    raise TimeoutError(f"no record for {timeout_s} s, and not read: {unread}")
                for record in consumer.poll(_POLL_S):
                    deadline_s = time.monotonic() + timeout_s
                    where = TopicPartition(record.topic, record.partition)
                    if record.offset < ends[where]:
                        found.setdefault(where, []).append(record)
        return list(heapq.merge(*found.values(), key=lambda record: record.timestamp_ms))

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group, by partition."""
        return {where: each.offset for where, each in self.admin.offsets(group).items()}
