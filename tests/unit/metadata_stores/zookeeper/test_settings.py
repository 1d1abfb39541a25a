"""The settings of the metadata store on ZooKeeper."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.metadata_stores.zookeeper import ZooKeeperSettings


def test_a_list_of_servers_may_end_with_a_chroot() -> None:
    settings = ZooKeeperSettings(connect="a:1, b,[::1]:3/kafka//one/")
    assert settings.addresses == [("a", 1), ("b", 2181), ("::1", 3)]
    assert settings.chroot == "/kafka/one"
    assert ZooKeeperSettings(connect="a").chroot == ""


@pytest.mark.parametrize("connect", ["", "/chroot", "a:b", "a:0", "a,,b", ":1", "a:99999"])
def test_a_malformed_list_of_servers_is_refused(connect: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        ZooKeeperSettings(connect=connect)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"digest": "alice"}, "USER:PASSWORD"),
        ({"sasl_user": "alice"}, "needs both a user and a password"),
        ({"set_acl": True}, "needs credentials"),
    ],
)
def test_incomplete_credentials_are_refused(given: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        ZooKeeperSettings(connect="a", **given)


def test_no_password_is_in_the_text_of_the_settings() -> None:
    settings = ZooKeeperSettings("a", digest="a:secret", sasl_user="a", sasl_password="secret")
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(("session_ms", "attempt_s"), [(9_000, 0.9), (1_000, 0.25)])
def test_an_attempt_to_connect_lasts_a_tenth_of_the_session(
    session_ms: int, attempt_s: float
) -> None:
    assert ZooKeeperSettings("a", session_timeout_ms=session_ms).attempt_timeout_s == attempt_s
