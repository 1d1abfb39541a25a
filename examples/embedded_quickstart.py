"""Use a topic, a producer and a group in one process, without a server.

It prints:

3 records in 3 partitions
billing is done with orders 1 2 3
nothing is read twice: []
"""

from __future__ import annotations

import headrace


def main() -> None:
    """Write records, read them in a group, and join the group again."""
    with headrace.Broker() as broker:
        broker.create_topic("orders", partitions=3, partitioner="round_robin", serde="json")
        with headrace.Producer(broker) as producer:
            sent = [producer.send("orders", {"id": number}) for number in (1, 2, 3)]
        partitions = {each.result().partition for each in sent}
        print(len(sent), "records in", len(partitions), "partitions")

        with headrace.Consumer(broker, group="billing", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["orders"])
            found: list[int] = []
            while len(found) < len(sent):
                found += [record.value["id"] for record in consumer.poll(0.2)]
        print("billing is done with orders", *sorted(found))

        with headrace.Consumer(broker, group="billing") as again:
            again.subscribe(["orders"])
            print("nothing is read twice:", again.poll(0.5))


if __name__ == "__main__":
    main()
