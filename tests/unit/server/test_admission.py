"""Limits on connections and on the names of one request. Loopback addresses have no limits by address."""

from __future__ import annotations

from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.produce import ProduceRequest, TopicProduceData
from headrace.server.connections.admission import Admission, longest_list
from headrace.server.limits import ServerLimits

LIMITS = ServerLimits(
    max_connections=8, max_connections_per_address=5, max_connection_rate_per_address=3
)
FAR, FARTHER, HERE = "192.0.2.1", "2001:db8::1", "127.0.0.1"


def test_an_address_opens_so_many_connections_a_second() -> None:
    admission = Admission(LIMITS)
    assert [admission.enter(FAR, 5_000) for _ in range(3)] == [None] * 3
    assert admission.enter(FAR, 5_999) == f"{FAR} opens more than 3 connections a second"
    assert admission.enter(FARTHER, 5_999) is None
    assert admission.enter(FAR, 6_000) is None


def test_a_connection_quota_replaces_the_limit_of_an_address_even_on_loopback() -> None:
    admission = Admission(LIMITS)
    assert [admission.enter(FAR, 5_000, 4) for _ in range(4)] == [None] * 4
    reason = f"{FAR} opens more than 4 connections a second, which is its quota"
    assert admission.enter(FAR, 5_999, 4) == reason
    assert admission.enter(HERE, 5_999, 1) is None
    assert admission.enter(HERE, 5_999, 1) is not None
    assert admission.enter(HERE, 5_999) is None
    assert admission.enter(FAR, 6_000, 4) is None
    assert admission.enter(FAR, 6_000, 4) == f"{FAR} has 5 connections already"


def test_a_connection_that_was_refused_is_no_connection() -> None:
    admission = Admission(LIMITS)
    for now_ms in range(0, 5_000, 1_000):
        assert admission.enter(FAR, now_ms) is None
    assert admission.enter(FAR, 9_000) == f"{FAR} has 5 connections already"
    admission.leave(FAR)
    assert admission.enter(FAR, 9_000) is None
    assert admission.enter(FAR, 9_000) is not None


def test_loopback_is_bounded_by_the_total_only() -> None:
    admission = Admission(LIMITS)
    assert [admission.enter(HERE, 0) for _ in range(8)] == [None] * 8
    assert admission.enter("::1", 0) == "there are 8 connections already"
    admission.leave(HERE)
    assert admission.enter("::1", 0) is None


def test_changed_limits_apply_to_new_connections_and_count_open_connections() -> None:
    admission = Admission(LIMITS)
    for now_ms in range(0, 4_000, 1_000):
        assert admission.enter(FAR, now_ms) is None
    admission.limit(100, 2)
    assert admission.enter(FAR, 5_000) == f"{FAR} has 4 connections already"
    for _ in range(3):
        admission.leave(FAR)
    assert admission.enter(FAR, 6_000) is None
    admission.limit(2, 100)
    assert admission.enter(FAR, 7_000) == "there are 2 connections already"
    admission.limit(100, 100)
    assert [admission.enter(HERE, 8_000) for _ in range(6)] == [None] * 6
    assert admission.enter(HERE, 8_000) == "there are 8 connections already", "what was begun with"


def test_the_longest_list_of_a_request_is_found_under_any_field_name() -> None:
    topics = [MetadataRequestTopic(name="t")] * 7
    assert longest_list(MetadataRequest(topics=topics)) == 7
    assert longest_list(MetadataRequest(topics=None)) == 0
    assert longest_list(ProduceRequest(topic_data=[TopicProduceData(name="t")] * 3)) == 3
