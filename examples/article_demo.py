"""Show a group of consumers while it changes: `python examples/article_demo.py [HOST:PORT]`.

Two consumers share a topic of six partitions, a third one joins, one is killed, and partitions are added. The committed
offsets of the group show after each step that no record was lost. Without an address, the broker is in this program.
The address may be that of `headrace serve` or Apache Kafka.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import headrace

PARTITIONS = 6
PATIENCE_S = 60


class Reader:
    """A consumer with a name and the number of records that it has read."""

    def __init__(self, target: Any, group: str, topic: str, name: str) -> None:
        self.name = name
        self.read = 0
        self.consumer = headrace.Consumer(
            target,
            group=group,
            client_id=name,
            assignor="equal",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=500,
            metadata_max_age_ms=1_000,  # on Apache Kafka members look for new partitions themselves
        )
        self.consumer.subscribe([topic])

    def poll(self) -> None:
        """Read the available records and commit their offsets."""
        records = self.consumer.poll(0.05)
        if records:
            self.read += len(records)
            self.consumer.commit()

    @property
    def partitions(self) -> list[int]:
        """The partitions that are assigned to the consumer."""
        return sorted(number for _, number in self.consumer.positions())


class Demo:
    """The steps of the demonstration, with the topic and the clients that they use."""

    def __init__(self, target: Any, say: Callable[[str], object] = print) -> None:
        self.target = target
        self.say = say
        self.topic = self.group = f"article-{uuid.uuid4().hex[:8]}"
        self.admin = headrace.Admin(target)
        self.producer = headrace.Producer(
            target, partitioner="round_robin", linger_ms=0, metadata_max_age_ms=500
        )
        self.readers: list[Reader] = []
        self.published = 0

    def run(self) -> None:
        """Run all steps, and close the clients."""
        try:
            self._steps()
        finally:
            for reader in self.readers:
                reader.consumer.close()
            self.producer.close()
            self.admin.close()

    def _steps(self) -> None:
        self.say(f"1. A topic with {PARTITIONS} partitions.")
        self.admin.create_topic(self.topic, PARTITIONS)
        self._publish(60)
        self.say("2. Two consumers join the group: three partitions are assigned to each.")
        self._join("anna")
        self._join("ben")
        self._settle(PARTITIONS)
        self.say("3. A third consumer joins: only the partitions that it receives move.")
        self._join("cleo")
        self._settle(PARTITIONS)
        self._publish(60)
        self._show_offsets()
        self.say(
            "4. anna is killed without leaving the group: her partitions move when her session ends."
        )
        self._kill(self.readers.pop(0))
        self._publish(60)
        self._settle(PARTITIONS)
        self._show_offsets()
        self.say(f"5. {PARTITIONS} partitions are added: the group reads them without a restart.")
        self.admin.add_partitions(self.topic, 2 * PARTITIONS)
        self._settle(2 * PARTITIONS)
        self._publish(120)
        self.say("6. The group's offsets: everything that was published is read and committed.")
        self._show_offsets()

    def _publish(self, count: int) -> None:
        for number in range(count):
            self.producer.send(self.topic, b"%d" % (self.published + number))
        self.producer.flush()
        self.published += count
        self.say(f"   {count} records are published, {self.published} in all.")

    def _join(self, name: str) -> None:
        self.readers.append(Reader(self.target, self.group, self.topic, name))

    def _kill(self, reader: Reader) -> None:
        reader.consumer._driver.close()  # noqa: SLF001 - a killed program does not leave its group, but `close` does

    def _settle(self, count: int) -> None:
        def settled() -> bool:
            held = [reader.partitions for reader in self.readers]
            sizes = [len(partitions) for partitions in held]
            return (
                sorted(one for partitions in held for one in partitions) == list(range(count))
                and max(sizes) - min(sizes) <= 1
            )

        self._wait(settled)
        for reader in self.readers:
            self.say(f"   {reader.name} reads partitions {', '.join(map(str, reader.partitions))}.")

    def _show_offsets(self) -> None:
        def committed() -> dict[int, int]:
            offsets = self.admin.offsets(self.group)
            return {number: at.offset for (_, number), at in sorted(offsets.items())}

        self._wait(lambda: sum(committed().values()) == self.published)
        self.say(f"   Committed: {', '.join(f'{n}: {at}' for n, at in committed().items())}.")
        self.say(f"   That is {sum(committed().values())} of {self.published} records.")

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Poll all consumers until the condition is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {PATIENCE_S} seconds")
            for reader in self.readers:
                reader.poll()


def main() -> None:
    """Run the demonstration at the given address, or with a broker in this program."""
    if len(sys.argv) > 1:
        Demo(sys.argv[1]).run()
    else:
        with headrace.Broker(configs={"group.initial.rebalance.delay.ms": "0"}) as broker:
            Demo(broker).run()


if __name__ == "__main__":
    main()
