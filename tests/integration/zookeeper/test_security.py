"""The metadata store on ZooKeeper with credentials, ACLs and TLS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from headrace.errors import ConfigError, StorageError
from headrace.metadata_stores.zookeeper import ZooKeeperTls, layout
from headrace.ports import Put
from tests.fixtures.certificates import LOOPBACK, Authority
from tests.fixtures.kafka import free_ports
from tests.fixtures.metadata_stores import commit, stored
from tests.fixtures.zookeeper import ZooKeeper
from tests.integration.zookeeper.conftest import Open

pytestmark = pytest.mark.java
JAAS = """Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required
    user_alice="wonder"
    user_bob="builder";
};
"""


def test_only_the_user_of_the_brokers_may_use_znodes_with_acls(
    single: ZooKeeper, opened: Open, chroot: str
) -> None:
    store = opened(single, digest="alice:wonder", set_acl=True)
    commit(store, [], [Put("scram/a", b"secret"), Put("live", b"", ephemeral=True)])
    stranger = KazooClient(single.address)
    stranger.start(30)
    for path in (layout.ROOT, layout.path_of("scram/a"), layout.change_path(1, 0)):
        with pytest.raises(NoAuthError):
            stranger.get(chroot + path)
    with pytest.raises(NoAuthError):
        stranger.get_children(chroot + layout.SESSIONS)
    stranger.stop()
    stranger.close()
    for credentials in ({}, {"digest": "alice:wrong"}, {"digest": "bob:builder"}):
        with pytest.raises(ConfigError, match=f"denies access to {chroot}"):
            opened(single, **credentials)
    assert "scram/a" in stored(opened(single, digest="alice:wonder"))


def test_znodes_are_open_without_acls(single: ZooKeeper, opened: Open) -> None:
    commit(opened(single, digest="alice:wonder"), [], [Put("a", b"1")])
    assert "a" in stored(opened(single))


@pytest.fixture(scope="module")
def authenticating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """A server that demands SASL."""
    directory = tmp_path_factory.mktemp("sasl")
    jaas = directory / "jaas.conf"
    jaas.write_text(JAAS)
    settings = {
        "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "enforce.auth.enabled": "true",
        "enforce.auth.schemes": "sasl",
    }
    options = [f"-Djava.security.auth.login.config={jaas}"]
    with ZooKeeper(directory / "node", settings=settings, jvm_options=options) as ensemble:
        yield ensemble


def test_a_broker_authenticates_with_sasl(authenticating: ZooKeeper, opened: Open) -> None:
    alice = {"sasl_user": "alice", "sasl_password": "wonder"}
    store = opened(authenticating, set_acl=True, **alice)
    commit(store, [], [Put("a", b"1")])
    assert "a" in stored(opened(authenticating, **alice))
    with pytest.raises(ConfigError, match="denies access"):
        opened(authenticating, sasl_user="bob", sasl_password="builder")


@pytest.mark.parametrize("password", ["wrong", None])
def test_a_refused_sasl_user_is_a_clear_error(
    authenticating: ZooKeeper, opened: Open, password: str | None
) -> None:
    user = None if password is None else "alice"
    with pytest.raises((ConfigError, StorageError), match=r"refuses the session|check the cred"):
        opened(authenticating, sasl_user=user, sasl_password=password, connection_timeout_ms=3_000)


def test_a_broker_connects_with_tls_in_both_directions(tmp_path: Path, opened: Open) -> None:
    authority = Authority(tmp_path / "certificates")
    server = authority.issue("zookeeper", hosts=LOOPBACK)
    client = authority.issue("broker")
    (port,) = free_ports(1)
    settings = {
        "secureClientPort": str(port),
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "authProvider.x509": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
        "ssl.keyStore.location": str(server.pem),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": str(authority.path),
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "need",
    }
    ca = str(authority.path)
    with ZooKeeper(tmp_path / "node", settings=settings):
        own = ZooKeeperTls(certificate_file=str(client.certificate), key_file=str(client.key))
        tls = replace(own, ca_file=ca)
        store = opened(f"127.0.0.1:{port}/tls", tls=tls, set_acl=True)
        commit(store, [], [Put("a", bytes(300_000))])
        assert len(stored(store)["a"].value) == 300_000
        with pytest.raises(StorageError, match=r"no ZooKeeper at .* has begun a session"):
            opened(f"127.0.0.1:{port}", tls=ZooKeeperTls(ca_file=ca), connection_timeout_ms=1_000)
        with pytest.raises(StorageError, match=r"TLS: .*CERTIFICATE_VERIFY_FAILED"):
            opened(f"127.0.0.1:{port}", tls=own, connection_timeout_ms=1_000)


def test_a_certificate_that_cannot_be_read_is_named(single: ZooKeeper, opened: Open) -> None:
    tls = ZooKeeperTls(ca_file="/no/such/ca.pem")
    with pytest.raises(
        ConfigError, match=r"TLS with ZooKeeper cannot use /no/such/ca.pem: .*No such"
    ):
        opened(single, tls=tls)
