"""Keys and values are decoded by serdes of the program or of the topic, and some records cannot be decoded."""

from __future__ import annotations

import pytest

from headrace.clients.config import ConsumerConfig
from headrace.clients.flows.topic_settings import KEY_SERDE, SERDE
from headrace.errors import ConfigError, SerializationError
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from headrace.records.builder import BatchBuilder
from headrace.serdes.serde import resolve_serde
from headrace.types import TopicPartition
from tests.fixtures.broker_harness import START_MS, produce_request
from tests.fixtures.consumer_simulation import ConsumerSimulation

T0 = TopicPartition("t", 0)


def make_simulation(*values: bytes | None) -> ConsumerSimulation:
    simulation = ConsumerSimulation()
    simulation.broker.create_topic("t")
    builder = BatchBuilder()
    for number, value in enumerate(values):
        assert builder.append(b"k%d" % number, value, (), START_MS)
    simulation.broker.call(produce_request("t", 0, bytes(builder.build())))
    return simulation


def named(**serdes: str):
    """A broker whose topics name their serdes."""

    def answer(_program, call):
        if not isinstance(call.request, DescribeConfigsRequest):
            return None
        entries = [
            DescribeConfigsResourceResult(name=name, value=value) for name, value in serdes.items()
        ]
        [resource] = call.request.resources
        result = DescribeConfigsResult(resource_name=resource.resource_name, configs=entries)
        return DescribeConfigsResponse(results=[result])

    return answer


def test_given_serdes_read_every_topic() -> None:
    simulation = make_simulation(b'{"id": 1}', None)
    reader = simulation.consumer(serde=resolve_serde("json"), key_serde=resolve_serde("str"))
    reader.assign({T0: 0})
    records = reader.poll(1000)
    assert [(record.key, record.value) for record in records] == [("k0", {"id": 1}), ("k1", None)]
    assert reader.requests(DescribeConfigsRequest) == []


def test_a_topic_names_its_serdes() -> None:
    simulation = make_simulation(b'{"id": 1}')
    simulation.fault = named(**{SERDE: "json", KEY_SERDE: "str"})
    reader = simulation.consumer(resolve_serde=resolve_serde)
    reader.assign({T0: 0})
    [record] = reader.poll(1000)
    assert (record.key, record.value) == ("k0", {"id": 1})
    reader.poll(1000)
    assert len(reader.requests(DescribeConfigsRequest)) == 1


def test_a_given_serde_goes_before_the_topics() -> None:
    simulation = make_simulation(b'{"id": 1}')
    simulation.fault = named(**{SERDE: "json", KEY_SERDE: "str"})
    reader = simulation.consumer(resolve_serde=resolve_serde, serde=resolve_serde("bytes"))
    reader.assign({T0: 0})
    [record] = reader.poll(1000)
    assert (record.key, record.value) == ("k0", b'{"id": 1}')


def test_topics_without_a_serde_are_bytes() -> None:
    simulation = make_simulation(b"v")
    reader = simulation.consumer(resolve_serde=resolve_serde)
    reader.assign({T0: 0})
    [record] = reader.poll(1000)
    assert (record.key, record.value) == (b"k0", b"v")


def test_a_serde_that_is_not_known_here_is_an_error() -> None:
    simulation = make_simulation(b"v")
    simulation.fault = named(**{SERDE: "martian"})
    reader = simulation.consumer(resolve_serde=resolve_serde)
    reader.assign({T0: 0})
    with pytest.raises(ConfigError, match="no serde is called 'martian'"):
        reader.poll(1000)


def test_an_undecodable_record_stops_the_consumer_until_a_seek_skips_the_record() -> None:
    simulation = make_simulation(b"1", b"2", b"{", b"4")
    reader = simulation.consumer(serde=resolve_serde("json"))
    reader.assign({T0: 0})
    assert [record.value for record in reader.poll(1000)] == [1, 2]
    for _ in range(2):
        with pytest.raises(
            SerializationError, match="value of the record at offset 2 of t-0"
        ) as raised:
            reader.poll(1000)
        assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("t", 0, 2)
    assert reader.core.positions.positions() == {T0: 2}
    reader.core.positions.seek(T0, 3)
    assert [record.value for record in reader.poll(1000)] == [4]
    assert ConsumerConfig().max_poll_records > 4
