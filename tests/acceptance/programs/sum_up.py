"""One program for every place: TARGET GROUP TOPIC COUNT; sums up what it reads of a topic until its group has read all.

In a program TARGET is an address; `main` takes a `headrace.Broker` as well.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import headrace


def main(target: Any, group: str, topic: str, count: int) -> dict[str, int]:
    """Read as a member of the group. The members exchange their results through a second topic."""
    total = {"records": 0, "sum": 0}
    told = 0
    with (
        headrace.Consumer(target, group=group, auto_offset_reset="earliest") as consumer,
        headrace.Consumer(target, auto_offset_reset="earliest", serde="json") as watcher,
        headrace.Producer(target, serde="json", linger_ms=0) as producer,
    ):
        consumer.subscribe([topic])
        watcher.assign(watcher.partitions_for(f"{topic}-done"))
        while told < count:
            records = consumer.poll(0.1)
            if records:
                consumer.commit()
                total["records"] += len(records)
                total["sum"] += sum(int(record.value) for record in records)
                producer.send(f"{topic}-done", len(records)).result()
            told += sum(record.value for record in watcher.poll(0.02))
    return total


if __name__ == "__main__":
    where, of, what, how_many = sys.argv[1:]
    print(json.dumps(main(where, of, what, int(how_many))))
