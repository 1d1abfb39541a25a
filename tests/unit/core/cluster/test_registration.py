"""The states of a broker's registration, and its lease."""

from __future__ import annotations

from headrace.core.cluster.registration import (
    Registration,
    RegistrationState,
    heartbeat_interval_ms,
    next_heartbeat_ms,
)
from headrace.ports import MetadataSession

INIT, ACTIVE, SUSPECT, EXPIRED = RegistrationState
YEAR_MS = 365 * 24 * 3_600_000
LEASE_MS = 4_500
"""The lease with the default session timeout."""


def test_a_registration_is_active_until_its_lease_ends() -> None:
    registration = Registration()
    assert registration.state(0) is INIT
    registration.registered(4, MetadataSession(1, 1_000))
    assert registration.broker_epoch == 4
    assert registration.state(1_000 + LEASE_MS - 1) is ACTIVE
    assert registration.state(1_000 + LEASE_MS) is SUSPECT


def test_an_acknowledged_write_renews_the_lease_from_the_time_of_its_sending() -> None:
    registration = Registration()
    registration.registered(4, MetadataSession(1, 1_000))
    registration.renewed(MetadataSession(1, 9_000))
    assert registration.state(9_000 + LEASE_MS - 1) is ACTIVE
    assert registration.state(9_000 + LEASE_MS) is SUSPECT


def test_another_session_means_that_the_registration_has_expired_until_the_broker_registers() -> (
    None
):
    registration = Registration()
    registration.registered(4, MetadataSession(1, 1_000))
    registration.renewed(MetadataSession(2, 1_100))
    assert registration.state(1_101) is EXPIRED
    registration.renewed(MetadataSession(2, 1_200))
    assert registration.state(1_201) is EXPIRED
    registration.registered(5, MetadataSession(2, 1_300))
    assert registration.state(1_301) is ACTIVE
    registration.expired()
    assert registration.state(1_302) is EXPIRED


def test_a_store_in_this_process_needs_no_lease_and_no_heartbeat() -> None:
    registration, session = Registration(), MetadataSession(1)
    registration.registered(4, session)
    assert registration.state(YEAR_MS) is ACTIVE
    assert next_heartbeat_ms(session) is None


def test_the_broker_writes_often_enough_to_keep_its_lease_and_the_lease_ends_before_the_session() -> (
    None
):
    for timeout_ms in (600, 9_000, 60_000):
        session = MetadataSession(1, 500, timeout_ms)
        heartbeat_ms = heartbeat_interval_ms(session)
        assert next_heartbeat_ms(session) == 500 + heartbeat_ms
        registration = Registration()
        registration.registered(4, session)
        lease_ms = (registration.until_ms or 0) - 500
        assert 2 * heartbeat_ms < lease_ms < timeout_ms - heartbeat_ms
