"""A quota limits the connections that an address opens in a second."""

from __future__ import annotations

import socket
from pathlib import Path

from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from tests.conformance.differential.peer import Closed, Connection
from tests.fixtures.targets import HeadraceServer

ATTEMPTS = 20


def set_rate(connection: Connection, rate: float | None) -> None:
    part = AlterClientQuotasRequestEntityData(entity_type="ip", entity_name="127.0.0.1")
    change = OpData(key="connection_creation_rate", value=rate or 0.0, remove=rate is None)
    entry = AlterClientQuotasRequestEntryData(entity=[part], ops=[change])
    connection.send(AlterClientQuotasRequest(entries=[entry]), 1)
    assert connection.receive().entries[0].error_code == 0


def is_served(address: tuple[str, int]) -> bool:
    """Return whether a new connection is answered."""
    try:
        connection = Connection(address)
    except ConnectionError:
        return False
    try:
        connection.send(ApiVersionsRequest(), 0)
        connection.receive()
    except (Closed, ConnectionError):
        return False
    finally:
        connection.close()
    return True


def test_connections_beyond_the_quota_of_their_address_are_closed(tmp_path: Path) -> None:
    server = HeadraceServer(tmp_path / "headrace")
    server.start()
    try:
        host, port = server.bootstrap.rsplit(":", 1)
        address = (socket.gethostbyname(host), int(port))
        assert all(is_served(address) for _ in range(ATTEMPTS))
        admin = Connection(address)
        set_rate(admin, 1)
        assert not all(is_served(address) for _ in range(ATTEMPTS))
        set_rate(admin, 1_000_000)
        assert all(is_served(address) for _ in range(ATTEMPTS))
        set_rate(admin, None)
        assert all(is_served(address) for _ in range(ATTEMPTS))
        admin.close()
    finally:
        server.stop()
