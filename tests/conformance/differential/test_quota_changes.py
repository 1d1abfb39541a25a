"""AlterClientQuotas and DescribeClientQuotas: the entities, the quotas, and their valid values."""

from __future__ import annotations

import pytest

from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from headrace.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
)
from tests.conformance.differential.pair import Pair, Scenario, Scenarios
from tests.conformance.differential.peer import Peer

pytestmark = pytest.mark.java
scenarios = Scenarios()
Entity = tuple[tuple[str, str | None], ...]
CLIENT: Entity = (("client-id", "quota-client"),)
EXACT, DEFAULT, ANY = range(3)


@scenarios.mark()
def test_headrace_alters_and_describes_quotas_as_kafka_does(pair: Pair, scenario: Scenario) -> None:
    pair.compare(scenario)


def altered(
    entity: Entity, *changes: tuple[str, float | None], validate_only: bool = True
) -> AlterClientQuotasRequest:
    """Changes are quotas and their values; None removes one."""
    return AlterClientQuotasRequest(
        entries=[
            AlterClientQuotasRequestEntryData(
                entity=[
                    AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity
                ],
                ops=[
                    OpData(key=key, value=value or 0.0, remove=value is None)
                    for key, value in changes
                ],
            )
        ],
        validate_only=validate_only,
    )


@scenarios
def client_quotas(peer: Peer) -> None:
    def ask(label: str, entity: Entity, *changes: tuple[str, float | None]) -> None:
        for version in peer.range_of(AlterClientQuotasRequest):
            answer = peer.quiet(altered(entity, *changes), version)
            for entry in answer.entries:  # Kafka's order is that of a hash map
                entry.entity.sort(key=lambda part: part.entity_type)
            peer.note_answer(f"{label} v{version}", answer)

    ask("bytes", CLIENT, ("producer_byte_rate", 1000.0), ("consumer_byte_rate", 1000.0))
    ask("time", CLIENT, ("request_percentage", 12.5))
    ask("user", (("user", "u"),), ("producer_byte_rate", 1.0))
    ask("both", (("user", None), ("client-id", "c")), ("producer_byte_rate", 1.0))
    ask("remove", CLIENT, ("producer_byte_rate", None))
    ask("half a byte", CLIENT, ("producer_byte_rate", 0.5))
    ask("nothing", CLIENT, ("producer_byte_rate", 0.0))
    ask("negative", CLIENT, ("request_percentage", -1.0))
    ask("unknown quota", CLIENT, ("no_such_rate", 1.0))
    ask("unknown type", (("tenant", "t"),), ("producer_byte_rate", 1.0))
    ask("no entity", (), ("producer_byte_rate", 1.0))
    ask("mutations", CLIENT, ("controller_mutation_rate", 5.0))
    ask("connections of a client", CLIENT, ("connection_creation_rate", 5.0))
    ask("connections of an address", (("ip", "192.0.2.1"),), ("connection_creation_rate", 5.0))
    address = "192.0.2.1"
    for rate in (1.0, 0.5, 0.0, -1.0, 2.0**31 - 1, 2.0**31):
        ask(f"{rate} connections", (("ip", address),), ("connection_creation_rate", rate))
    for name in (None, "::1", "2001:DB8::1", "192.0.2.999", "no such host", "", "localhost"):
        ask(f"connections of {name!r}", (("ip", name),), ("connection_creation_rate", 5.0))
    ask("no connections of an address", (("ip", address),), ("connection_creation_rate", None))
    ask("no bytes of an address", (("ip", address),), ("producer_byte_rate", None))
    ask("mutations of an address", (("ip", address),), ("controller_mutation_rate", 5.0))
    ask("connections of a user", (("user", "u"),), ("connection_creation_rate", 5.0))
    both = (("connection_creation_rate", 5.0), ("producer_byte_rate", 5.0))
    ask("connections and bytes of an address", (("ip", address),), *both)
    ask("bytes of an address", (("ip", "192.0.2.1"),), ("producer_byte_rate", 5.0))
    ask("address and user", (("ip", "192.0.2.1"), ("user", "u")), ("producer_byte_rate", 5.0))


@scenarios
def stored_quotas(peer: Peer) -> None:
    store_and_remove(peer, CLIENT, "producer_byte_rate")


@scenarios
def stored_quotas_of_an_address(peer: Peer) -> None:
    store_and_remove(peer, (("ip", "192.0.2.77"),), "connection_creation_rate")


def store_and_remove(peer: Peer, entity: Entity, quota: str) -> None:
    ((kind, name),) = entity

    def describe(match_type: int, match: str | None = None) -> DescribeClientQuotasRequest:
        part = ComponentData(entity_type=kind, match_type=match_type, match=match)
        return DescribeClientQuotasRequest(components=[part], strict=True)

    peer.ask("before", describe(EXACT, name))
    peer.quiet(altered(entity, (quota, 1000.0), validate_only=False))
    peer.wait_for("stored", lambda: bool(peer.quiet(describe(EXACT, name)).entries))
    for version in peer.range_of(DescribeClientQuotasRequest):
        peer.ask("exact", describe(EXACT, name), version)
        peer.ask("default", describe(DEFAULT), version)
        peer.ask("any", describe(ANY), version)
    peer.quiet(altered(entity, (quota, None), validate_only=False))
    peer.wait_for("removed", lambda: not peer.quiet(describe(EXACT, name)).entries)
    peer.ask("after", describe(EXACT, name))
