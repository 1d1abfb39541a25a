"""Share the records of a broker in this program with consumers in other processes.

It prints:

listening
every record was read once, by 2 processes
"""

from __future__ import annotations

import subprocess
import sys

import headrace

RECORDS = 40


def consume(address: str) -> None:
    """Read in the group and print the values, until both partitions have a record without a value."""
    with headrace.Consumer(address, group="workers", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["jobs"])
        while len(consumer.assignment()) != 2:  # until each of the two processes has two partitions
            consumer.poll(0.1)
        print("ready", flush=True)
        open_partitions = 2
        while open_partitions:
            for record in consumer.poll(0.1):
                if record.value is None:
                    open_partitions -= 1
                else:
                    print(record.value, flush=True)


def main() -> None:
    """Serve a broker, start two consumers, and write records for them."""
    with headrace.Broker() as broker:
        broker.create_topic("jobs", partitions=4, partitioner="round_robin", serde="str")
        address = broker.listen("127.0.0.1:0")
        print("listening")
        command = [sys.executable, __file__, address]
        workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        with headrace.Producer(broker) as producer:
            for number in range(RECORDS):
                producer.send("jobs", f"job {number}")
            for partition in range(4):
                producer.send("jobs", None, partition=partition)
        read = [worker.communicate(timeout=60)[0].splitlines() for worker in workers]
        assert sorted(read[0] + read[1]) == sorted(f"job {number}" for number in range(RECORDS))
        print("every record was read once, by", sum(map(bool, read)), "processes")


if __name__ == "__main__":
    consume(sys.argv[1]) if len(sys.argv) > 1 else main()
