"""Many threads that call `Broker.publish` first create one producer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

import headrace
from headrace.clients.producer import blocking

ROUNDS = 20
THREADS = 8


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Switch threads as often as possible. With the default interval the race would be rare."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_the_first_publishers_share_one_producer(
    quick_switches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    class Counted(blocking.Producer):
        def __init__(self, *arguments: object, **options: object) -> None:
            made.append(self)
            super().__init__(*arguments, **options)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(blocking, "Producer", Counted)
    for number in range(ROUNDS):
        with headrace.Broker() as broker:
            broker.create_topic("t")
            start = threading.Barrier(THREADS)

            def publish(broker: headrace.Broker = broker, start: threading.Barrier = start) -> None:
                start.wait()
                broker.publish("t", b"x")

            threads = [threading.Thread(target=publish) for _ in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(broker.read("t", 0, 0)) == THREADS
        assert len(made) == number + 1
