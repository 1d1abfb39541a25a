"""A member of a group with `headrace.Consumer`, for the company of members in other languages."""

from __future__ import annotations

import sys

import headrace
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.errors import ApiError
from headrace.types import TopicPartition
from tests.conformance.clients.programs.common import (
    HEARTBEAT_MS,
    POLL_S,
    SESSION_TIMEOUT_MS,
    Command,
    Commands,
    emit,
    run,
)

COMMANDS = Commands()


class Member:
    """Commits what it got after each poll and before it gives partitions up, and says so."""

    def __init__(self, command: Command) -> None:
        self._name = command["name"]
        self._pending: dict[TopicPartition, int] = {}
        self._consumer = headrace.Consumer(
            sys.argv[1],
            group=command["group"],
            client_id=self._name,
            assignor="range",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        self._consumer.subscribe([command["topic"]], listener=self)

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        emit("assigned", partitions=[each.partition for each in partitions])

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        self._commit()
        self.on_lost(partitions)

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        self._pending.clear()
        emit("revoked", partitions=[each.partition for each in partitions])

    def run(self) -> None:
        while not COMMANDS.leave_asked():
            records = self._consumer.poll(POLL_S)
            for each in records:
                self._pending[TopicPartition(each.topic, each.partition)] = each.offset + 1
            if records:
                emit(
                    "records", records=[[e.partition, e.offset, e.value.decode()] for e in records]
                )
            self._commit()
        self._consumer.close()
        emit("left")

    def _commit(self) -> None:
        if not self._pending:
            return
        offsets = {
            place: OffsetAndMetadata(offset, self._name) for place, offset in self._pending.items()
        }
        try:
            self._consumer.commit(offsets)
        except ApiError as error:
            emit("commit_failed", message=str(error))
            return
        emit("committed", offsets={place.partition: o.offset for place, o in offsets.items()})
        self._pending.clear()


run(COMMANDS, {"member": lambda command: Member(command).run()})
