"""Every call that ends a subscription works inside every method of a listener, and no method is called endlessly."""

from __future__ import annotations

from typing import Any

import pytest

import headrace
from headrace.errors import NoSubscriptionError

ZERO = headrace.TopicPartition("t", 0)


class Ends:
    """A listener that makes a call of its consumer in one of its hooks."""

    def __init__(self, hook: str, call: Any) -> None:
        self.hook = hook
        self.call = call
        self.told: list[str] = []

    def on_assigned(self, partitions: list[headrace.TopicPartition]) -> None:
        self._heard("on_assigned")

    def on_revoked(self, partitions: list[headrace.TopicPartition]) -> None:
        self._heard("on_revoked")

    def _heard(self, hook: str) -> None:
        self.told.append(hook)
        if hook == self.hook:
            self.call()


@pytest.fixture(params=["in process", "tcp"])
def target(request: pytest.FixtureRequest) -> Any:
    with headrace.Broker() as broker:
        broker.create_topic("t", 1)
        yield broker if request.param == "in process" else broker.listen()


def join(consumer: headrace.Consumer, listener: Ends) -> None:
    consumer.subscribe(["t"], listener=listener)
    for _ in range(200):
        consumer.poll(0.05)
        if listener.told:
            return
    pytest.fail("the consumer got no partitions")


def poll_often(consumer: headrace.Consumer) -> None:
    for _ in range(300):
        consumer.poll(0.05)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("ended_by", ["unsubscribe", "close"])
@pytest.mark.parametrize("called", ["unsubscribe", "close"])
def test_a_listener_that_is_revoked_may_end_the_subscription(
    target: Any, called: str, ended_by: str, protocol: str
) -> None:
    with headrace.Consumer(target, group="g", group_protocol=protocol) as consumer:
        listener = Ends("on_revoked", getattr(consumer, called))
        join(consumer, listener)
        getattr(consumer, ended_by)()
        assert listener.told == ["on_assigned", "on_revoked"]
        if "close" not in {called, ended_by}:
            with pytest.raises(NoSubscriptionError):
                consumer.poll(0)
            consumer.assign([ZERO])
            assert consumer.assignment() == [ZERO]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_listener_that_is_revoked_by_a_rebalance_may_unsubscribe(
    target: Any, protocol: str
) -> None:
    with (
        headrace.Consumer(target, group="g", group_protocol=protocol) as consumer,
        headrace.Admin(target) as admin,
    ):
        listener = Ends("on_revoked", consumer.unsubscribe)
        join(consumer, listener)
        admin.delete_topic("t")
        with pytest.raises(NoSubscriptionError):
            poll_often(consumer)
        assert listener.told == ["on_assigned", "on_revoked"]


def test_a_listener_may_unsubscribe_when_partitions_come(target: Any) -> None:
    with headrace.Consumer(target, group="g") as consumer:
        listener = Ends("on_assigned", consumer.unsubscribe)
        consumer.subscribe(["t"], listener=listener)
        with pytest.raises(NoSubscriptionError):
            poll_often(consumer)
        assert listener.told == ["on_assigned", "on_revoked"]
