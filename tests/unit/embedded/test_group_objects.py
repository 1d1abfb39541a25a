"""Groups of an embedded broker as objects: created, changed while members run, and stored."""

from __future__ import annotations

import pytest

from headrace.clients.consumer.blocking import Consumer
from headrace.embedded.broker import Broker
from headrace.embedded.clock import ManualClock
from headrace.errors import ApiError
from headrace.types import TopicPartition

T0 = TopicPartition("t", 0)


@pytest.fixture
def broker():
    with Broker(clock=ManualClock()) as opened:
        opened.create_topic("t")
        opened.create_topic("u")
        yield opened


def test_a_group_is_made_read_from_and_deleted(broker) -> None:
    group = broker.create_group("billing", assignor="equal", topics=["t"])
    assert (repr(group), group.state(), group.members()) == ("Group('billing')", "Empty", [])
    for number in range(3):
        broker.publish("t", b"%d" % number)
    consumer = Consumer(broker, group="billing", auto_offset_reset="earliest")
    consumer.subscribe()
    assert len(consumer.poll(10)) == 3
    consumer.commit()
    assert group.state() == "Stable"
    [member] = group.members()
    assert member.assignment == (T0,)
    assert group.offsets()[T0].offset == 3
    broker.publish("t", b"3")
    assert group.lag() == {T0: 1}
    group.remove_member(member.member_id)
    assert group.members() == []
    consumer.close(commit=False)
    assert group.reset_offsets(to="earliest") == {T0: 0}
    assert broker.groups() == ["billing"]
    group.delete()
    assert broker.groups() == []
    with pytest.raises(ApiError, match="group 'billing' does not exist"):
        group.members()


def test_a_group_is_attached_and_detached(broker) -> None:
    group = broker.create_group("g")
    assert group.attach("t").topics == {"t"}
    assert broker.group("g").attach(["u"]).topics == {"t", "u"}
    assert group.detach("t").topics == {"u"}
    assert group.detach().topics == frozenset()
    assert group.attach(pattern="t|u").pattern == "t|u"
    assert group.attachments().assignor is None
    with pytest.raises(ApiError, match=r"attached to the pattern .t\|u. already"):
        broker.create_group("g")


def test_groups_are_kept_in_a_directory(tmp_path) -> None:
    with Broker(tmp_path) as first:
        first.create_topic("t")
        first.create_group("named", assignor="equal", topics=["t"])
        first.create_group("by pattern", pattern="t.*")
        first.create_group("nothing yet")
        first.group("named").reset_offsets({T0: 0})
    with Broker(tmp_path) as second:
        assert second.groups() == ["by pattern", "named", "nothing yet"]
        named = second.group("named").attachments()
        assert named.topics == frozenset({"t"})
        assert named.assignor == "equal"
        assert second.group("by pattern").attachments().pattern == "t.*"
        assert second.group("named").offsets()[T0].offset == 0
        assert second.group("nothing yet").attach("t").topics == {"t"}
