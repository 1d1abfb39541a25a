"""Brokers with TLS and SASL: Apache Kafka, and Headrace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures.certificates import Certificates, make_certificates
from tests.fixtures.secured_headrace import SecuredHeadrace
from tests.fixtures.secured_kafka import SecuredKafka


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def secured_kafka(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[SecuredKafka]:
    server = SecuredKafka(tmp_path_factory.mktemp("kafka") / "node", certificates)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def secured_headrace(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[SecuredHeadrace]:
    server = SecuredHeadrace(tmp_path_factory.mktemp("headrace") / "node", certificates)
    server.start()
    try:
        yield server
    finally:
        server.stop()
