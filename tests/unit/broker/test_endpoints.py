"""Clients get the address of the listener to which they have connected."""

from __future__ import annotations

import pytest

from headrace.broker.context import Endpoint, RequestContext
from headrace.broker.endpoints import Endpoints
from headrace.broker.session import Session
from headrace.protocol.frame import RequestHeader

ADVERTISED = "INTERNAL://10.0.0.5:9092,EXTERNAL://kafka.example.org:443"


@pytest.mark.parametrize(
    ("listener", "told"),
    [
        ("INTERNAL", Endpoint("10.0.0.5", 9092)),
        ("EXTERNAL", Endpoint("kafka.example.org", 443)),
        ("OTHER", Endpoint("192.168.1.4", 19092)),
    ],
)
def test_clients_get_the_advertised_address_of_their_listener(
    listener: str, told: Endpoint
) -> None:
    context = RequestContext(
        now_ms=0,
        header=RequestHeader(3, 12, 1, None),
        client_address="client",
        listener_host="::ffff:192.168.1.4",
        listener_port=19092,
        session=Session(listener=listener),
    )
    assert Endpoints(ADVERTISED).endpoint_for(context) == told
