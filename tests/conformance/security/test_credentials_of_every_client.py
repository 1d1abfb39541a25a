"""Every client works with each kind of credentials that it supports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.security.every_client import CLIENTS, round_trip
from tests.fixtures.certificates import Certificates
from tests.fixtures.client_security import login, tls
from tests.fixtures.sasl_server import MECHANISMS
from tests.fixtures.secured_headrace import SecuredHeadrace
from tests.fixtures.secured_kafka import PASSWORD, USER

pytestmark = pytest.mark.java  # one of the clients
WITHOUT = {
    "kcat": ("SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
    "java": ("TLS",),
}
"""Omitted combinations: kcat takes no token and is too old for SCRAM; Java's case with a certificate covers TLS."""

WAYS = {
    "TLS": "SSL",
    "certificate": "MUTUAL",
    **dict.fromkeys(MECHANISMS, "SASL_SSL"),
    "SCRAM-SHA-256": "SASL_PLAINTEXT",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CLIENTS)
def test_the_right_credentials_let_a_client_in(
    secured_headrace: SecuredHeadrace,
    certificates: Certificates,
    tmp_path: Path,
    name: str,
    way: str,
) -> None:
    if way in WITHOUT.get(name, ()):
        pytest.skip(f"not {way}")
    listener = WAYS[way]
    if way in MECHANISMS:
        secret = secured_headrace.token() if way == "OAUTHBEARER" else PASSWORD
        authority = certificates.authority if listener == "SASL_SSL" else None
        properties = login(authority, way, USER, secret)
    else:
        own = certificates.client if way == "certificate" else None
        properties = tls(certificates.authority, own)
    round_trip(name, secured_headrace.bootstraps[listener], tmp_path, properties, f"{name}-{way}")
