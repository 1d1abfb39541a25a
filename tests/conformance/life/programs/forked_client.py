"""Use a client, fork, try to use it in the child in every way, end the child, and use the client again in the parent.

    forked_client.py ADDRESS SUBJECT ENDING DIRECTORY

The child says what each use raised; the last line says that the parent went on.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import headrace
from headrace.clients.blocking import BlockingClient
from headrace.errors import ClosedError
from headrace.types import TopicPartition

TOPIC = f"forked-{os.getpid()}"


class Subject:
    """A client: what is called in both processes, and how it is closed."""

    def __init__(self, client: Any, uses: dict[str, Callable[[], Any]]) -> None:
        self.client = client
        self.uses = uses
        self.close: Callable[[], Any] = client.close
        self.check: Callable[[], Any] = lambda: None


def producer_of(target: Any) -> Subject:
    producer = headrace.Producer(target)
    sent: list[Any] = []

    def send() -> None:
        sent.append(producer.send(TOPIC, b"%d" % len(sent)).result(20))

    def check() -> None:
        with headrace.Consumer(target, enable_auto_commit=False) as consumer:
            consumer.assign({TopicPartition(TOPIC, 0): 0})
            values: list[Any] = []
            while len(values) < len(sent):
                values += [record.value for record in consumer.poll(5)]
        assert values == [b"%d" % index for index in range(len(sent))], values
        assert [one.offset for one in sent] == list(range(len(sent))), sent

    uses = {
        "send": send,
        "flush": producer.flush,
        "partitions": lambda: producer.partitions_for(TOPIC),
    }
    subject = Subject(producer, uses)
    subject.check = check
    return subject


def consumer_of(target: Any) -> Subject:
    with headrace.Producer(target) as producer:
        producer.send_many(TOPIC, [b"%d" % index for index in range(200)])
    consumer = headrace.Consumer(
        target, group=TOPIC, auto_offset_reset="earliest", max_poll_records=10
    )
    consumer.subscribe([TOPIC])
    values: list[Any] = []

    def poll() -> None:
        deadline = time.monotonic() + 20
        before = len(values)
        while len(values) == before and time.monotonic() < deadline:
            values.extend(record.value for record in consumer.poll(1))
        assert values == [b"%d" % index for index in range(len(values))], values
        assert len(values) > before, "the consumer reads on"

    subject = Subject(consumer, {"poll": poll, "commit": consumer.commit})

    def check() -> None:
        with headrace.Admin(target) as admin:
            members = admin.describe_group(TOPIC).members
        assert len(members) == 1, "no member has left the group"

    subject.check = check
    return subject


def admin_of(target: Any) -> Subject:
    admin = headrace.Admin(target)
    return Subject(admin, {"topics": admin.topics})


def batches_of(target: Any) -> Subject:
    client = BlockingClient(target)
    return Subject(client, {"metadata": client.metadata, "connect": client.connect})


def broker_subject(broker: headrace.Broker) -> Subject:
    return Subject(
        broker,
        {
            "publish": lambda: broker.publish(TOPIC, b"x"),
            "read": lambda: broker.read(TOPIC, 0, 0),
            "topics": broker.topics,
            "listen": broker.listen,
            "client": lambda: headrace.Producer(broker).close(),
        },
    )


@contextmanager
def subject_of(name: str, address: str, directory: str) -> Iterator[Subject]:
    makers = {
        "producer": producer_of,
        "consumer": consumer_of,
        "admin": admin_of,
        "batches": batches_of,
    }
    place, _, kind = name.partition("-")
    if place == "tcp":
        with headrace.Admin(address) as admin:
            admin.create_topic(TOPIC, 1)
        yield makers[kind](address)
        return
    data = directory if place == "disk" else None
    broker = headrace.Broker(data=data)
    broker.create_topic(TOPIC)
    subject = broker_subject(broker) if kind == "broker" else makers[kind](broker)
    if kind != "broker":

        def close() -> None:
            subject.client.close()
            broker.close()

        subject.close = close
    yield subject
    if data is not None:
        headrace.Broker(data=data).close()  # no object of a child claims the directory


def in_child(subject: Subject) -> None:
    for name, use in subject.uses.items():
        began = time.monotonic()
        try:
            use()
        except ClosedError as error:
            text = str(error)
            helps = "before a fork" in text and "create a new one in each process" in text
            print(f"child {name}: {'refused' if helps else text}", flush=True)
        except Exception as error:  # noqa: BLE001 - the test reads what it was
            print(f"child {name}: {error!r}", flush=True)
        else:
            print(f"child {name}: done", flush=True)
        assert time.monotonic() - began < 5, name
    subject.client.close()
    print("child closed", flush=True)


def end_child(ending: str, subject: Subject) -> None:
    if ending == "collected":
        subject.client = None
        subject.uses.clear()
        subject.close = lambda: None
        gc.collect()
    sys.stdout.flush()
    if ending == "exit":
        sys.exit(0)
    os._exit(0)


def main() -> None:
    address, name, ending, directory = sys.argv[1:]
    with subject_of(name, address, directory) as subject:
        for use in subject.uses.values():
            use()
        child = os.fork()
        if child == 0:
            if ending != "untouched":
                in_child(subject)
            end_child(ending, subject)
        for _ in range(5):  # while the child is at work
            for use in subject.uses.values():
                use()
        assert os.waitpid(child, 0)[1] == 0
        for use in subject.uses.values():
            use()
        subject.check()
        subject.close()
    print("parent went on")


if __name__ == "__main__":
    main()
