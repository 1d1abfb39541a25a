"""The levels of loggers, which administrators see and change as configs."""

from __future__ import annotations

import pytest

from headrace.broker.configs.loggers import Logger, Loggers
from headrace.errors import ErrorCode
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.fixtures.broker_harness import BrokerHarness

LOGGER = 8
SET, DELETE, APPEND = 0, 1, 2


class TwoLoggers(Loggers):
    """A root logger, and a logger with a fixed level."""

    def __init__(self) -> None:
        self.levels = {"root": "INFO", "own": "WARN", "fixed": "INFO"}

    def all(self) -> dict[str, Logger]:
        return {
            name: Logger(level, is_fixed=name == "fixed") for name, level in self.levels.items()
        }

    def change(self, name: str, level: str | None) -> None:
        self.levels[name] = self.levels["root"] if level is None else level


@pytest.fixture
def harness() -> BrokerHarness:
    harness = BrokerHarness(broker_id=3)
    harness.broker.services.settings.loggers = TwoLoggers()
    return harness


def shown(harness: BrokerHarness, *keys: str) -> dict[str, str]:
    resource = DescribeConfigsResource(
        resource_type=LOGGER, resource_name="3", configuration_keys=list(keys) or None
    )
    (result,) = harness.call(DescribeConfigsRequest(resources=[resource]), 4).results
    assert result.error_code == ErrorCode.NONE
    return {each.name: each.value for each in result.configs}


def alter(
    harness: BrokerHarness, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> int:
    configs = [
        AlterableConfig(name=name, config_operation=operation, value=value)
        for name, operation, value in changes
    ]
    resource = AlterConfigsResource(resource_type=LOGGER, resource_name="3", configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    code: int = harness.call(request, 1).responses[0].error_code
    return code


def test_levels_are_shown_and_changed(harness: BrokerHarness) -> None:
    assert shown(harness) == {"root": "INFO", "own": "WARN", "fixed": "INFO"}
    assert shown(harness, "own", "none") == {"own": "WARN"}
    assert alter(harness, ("root", SET, "DEBUG"), ("own", DELETE, None)) == ErrorCode.NONE
    assert shown(harness) == {"root": "DEBUG", "own": "DEBUG", "fixed": "INFO"}
    assert alter(harness, ("own", SET, "FATAL"), validate_only=True) == ErrorCode.NONE
    assert shown(harness, "own") == {"own": "DEBUG"}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("own", SET, "LOUD"), ErrorCode.INVALID_CONFIG),
        (("own", SET, "info"), ErrorCode.INVALID_CONFIG),
        (("own", SET, None), ErrorCode.INVALID_REQUEST),
        (("own", APPEND, "INFO"), ErrorCode.INVALID_REQUEST),
        (("none", SET, "INFO"), ErrorCode.INVALID_CONFIG),
        (("none", DELETE, None), ErrorCode.INVALID_CONFIG),
        (("fixed", SET, "ERROR"), ErrorCode.INVALID_CONFIG),
        (("fixed", DELETE, None), ErrorCode.INVALID_CONFIG),
        (("root", DELETE, None), ErrorCode.INVALID_REQUEST),
    ],
)
def test_all_levels_of_a_request_are_changed_or_none(
    harness: BrokerHarness, change: tuple[str, int, str | None], code: ErrorCode
) -> None:
    before = shown(harness)
    other = "own" if change[0] == "root" else "root"
    assert alter(harness, (other, SET, "TRACE"), change) == code
    assert shown(harness) == before


def test_a_broker_inside_a_program_has_no_loggers() -> None:
    harness = BrokerHarness(broker_id=3)
    assert shown(harness) == {}
    assert alter(harness, ("root", SET, "INFO")) == ErrorCode.INVALID_CONFIG
