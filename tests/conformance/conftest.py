"""The choice of the server that the client suites run against."""

from __future__ import annotations

import os

import pytest

from tests.fixtures.kafka_python import close_refused_sockets
from tests.fixtures.targets import TARGETS

close_refused_sockets()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--target",
        choices=TARGETS,
        default=os.environ.get("CONFORMANCE_TARGET", "headrace"),
        help="the server that the conformance tests run against",
    )
