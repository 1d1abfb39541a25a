"""Pools of processes as programs have them, with a producer of the module: pools.py ADDRESS SHAPE METHOD.

A task tries the module's producer, and writes with a producer of its own process if that one refuses. Each line of the
output is the name of the process that wrote and the offset; the last line says what the log has.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import headrace
from headrace.errors import ClosedError
from headrace.types import TopicPartition

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else ""
TOPIC = os.environ.setdefault("POOLS_TOPIC", f"pools-{os.getpid()}")
PARENT = int(os.environ.setdefault("POOLS_PARENT", str(os.getpid())))

made: dict[str, headrace.Producer] = {}
"""The producer of the program, and the one that a process made for itself."""


def write(number: int) -> tuple[str, int, int]:
    """Return how a task's record was written, its number and its offset."""
    value = b"%d" % number
    if "program's" in made:
        try:
            return "program's", number, made["program's"].send(TOPIC, value).result(20).offset
        except ClosedError as error:
            if "before a fork" not in str(error):
                raise
    if "own" not in made:
        made["own"] = headrace.Producer(os.environ["POOLS_ADDRESS"])
    return "own", number, made["own"].send(TOPIC, value).result(20).offset


def executor(method: str) -> list[Any]:
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        return list(pool.map(write, range(20)))


def pool(method: str) -> list[Any]:
    """A pool as Celery's prefork pool: workers stay alive, and tasks run one after another."""
    with multiprocessing.get_context(method).Pool(2, maxtasksperchild=5) as workers:
        results = workers.map(write, range(20), chunksize=1)
        workers.close()
        workers.join()
    return results


def worker_of_a_server(numbers: list[int], pipe: int) -> None:
    """A worker as gunicorn's: forked after the program was loaded, and ended by a signal with SystemExit."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    results = [write(number) for number in numbers]
    os.write(pipe, repr(results).encode())
    assert stop.wait(30)
    sys.exit(0)


def server(_: str) -> list[Any]:
    results: list[Any] = []
    workers = []
    for numbers in (list(range(10)), list(range(10, 20))):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            worker_of_a_server(numbers, writing)
        os.close(writing)
        workers.append((child, reading))
    for child, reading in workers:
        results += eval(os.read(reading, 65536))  # of our own child
        os.kill(child, signal.SIGTERM)
        assert os.waitpid(child, 0)[1] == 0
    return results


def main() -> None:
    address, shape, method = sys.argv[1:]
    os.environ["POOLS_ADDRESS"] = address
    with headrace.Admin(address) as admin:
        admin.create_topic(TOPIC, 1)
    producer = made["program's"] = headrace.Producer(address)
    before = [producer.send(TOPIC, b"%d" % number).result(20).offset for number in (100, 101)]
    busy = threading.Event()

    def send_on() -> None:
        number = 1000
        while not busy.is_set():
            producer.send(TOPIC, b"%d" % number).result(20)
            number += 1
        sent.append(number - 1000)

    sent: list[int] = []
    thread = threading.Thread(
        target=send_on
    )  # holds the lock of the client now and then, also at a fork
    thread.start()
    results = {"executor": executor, "pool": pool, "server": server}[shape](method)
    busy.set()
    thread.join()
    offsets = before + [offset for _, _, offset in results]
    after = producer.send(TOPIC, b"102").result(20)
    producer.close()
    assert len(set(offsets)) == len(offsets), "no two records were acknowledged with one offset"
    assert {how for how, _, _ in results} == {"own"}, results
    with headrace.Consumer(address, enable_auto_commit=False) as consumer:
        consumer.assign({TopicPartition(TOPIC, 0): 0})
        values: list[bytes] = []
        while len(values) <= after.offset:
            values += [record.value for record in consumer.poll(5)]
    expected = [*range(20), 100, 101, 102, *range(1000, 1000 + sent[0])]
    assert sorted(int(value) for value in values) == expected
    print("all acknowledged records are in the log, once")


if __name__ == "__main__":
    main()
