"""A process ends the session of another process that has died."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import pytest

from headrace.metadata_stores.zookeeper import ZooKeeperSettings
from headrace.metadata_stores.zookeeper.takeover import SessionKey, end_session
from tests.fixtures.metadata_stores import Seen, settle, watch
from tests.fixtures.zookeeper import ZooKeeper
from tests.integration.zookeeper.conftest import Open

pytestmark = pytest.mark.java
BROKER = """
import os, sys, time
from headrace.metadata_stores.zookeeper import ZooKeeperSettings, open_zookeeper_store
from headrace.ports import Put
store = open_zookeeper_store(ZooKeeperSettings(sys.argv[1], session_timeout_ms=20_000), clock=lambda: 0, journal=None)
store.wait(store.commit([], [Put("live", b"", ephemeral=True)]))
print(store.session_key.number, store.session_key.password.hex(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("ensemble", ["single", "triple"])
def test_the_session_of_a_killed_process_ends_at_once(
    ensemble: str, request: pytest.FixtureRequest, opened: Open, chroot: str
) -> None:
    servers: ZooKeeper = request.getfixturevalue(ensemble)
    witness, seen = opened(servers), Seen()
    watch(witness, seen)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = ZooKeeperSettings(f"127.0.0.1:{port},{servers.address}{chroot}")
    command = [sys.executable, "-c", BROKER, servers.address + chroot]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        number, password = broker.stdout.readline().split()
        broker.kill()
    settle(witness)
    assert "live" in seen.known
    key = SessionKey(int(number), bytes.fromhex(password))
    end_session(settings, SessionKey(key.number, bytes(16)))
    settle(witness)
    assert "live" in seen.known, "the password is wrong"
    began = time.monotonic()
    assert end_session(settings, key)
    while "live" in seen.known:
        assert time.monotonic() < began + 5
        witness._arrived.wait(0.01)
        witness.run_pending()
    assert end_session(settings, key), "it has ended before"


def test_a_session_without_a_server_is_left_to_expire() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert not end_session(ZooKeeperSettings(f"127.0.0.1:{port}"), SessionKey(1, bytes(16)))


def test_the_password_of_a_session_is_not_in_its_text() -> None:
    assert "secret" not in repr(SessionKey(1, b"secret"))
