"""Describing and changing quotas, against scripted answers."""

from __future__ import annotations

import pytest

from headrace.clients.flows.quotas import DEFAULT, EntityQuotas, alter_quotas, describe_quotas
from headrace.errors import ApiError, ErrorCode, ProtocolError
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
)
from headrace.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from tests.unit.clients.scripted import ScriptedDriver


def test_an_entity_is_looked_for_by_its_names():
    entry = EntryData(
        entity=[
            EntityData(entity_type="user", entity_name=None),
            EntityData(entity_type="client-id", entity_name="c"),
        ],
        values=[ValueData(key="request_percentage", value=12.5)],
    )
    driver = ScriptedDriver(lambda _: DescribeClientQuotasResponse(entries=[entry]))
    found = driver.run(describe_quotas({"user": DEFAULT, "client-id": "c"}, strict=True))
    assert found == [EntityQuotas({"user": None, "client-id": "c"}, {"request_percentage": 12.5})]
    (request,) = driver.requests(DescribeClientQuotasRequest)
    assert [(c.entity_type, c.match_type, c.match) for c in request.components] == [
        ("user", 1, None),
        ("client-id", 0, "c"),
    ]
    assert request.strict


def test_a_refused_filter_is_an_error():
    answer = DescribeClientQuotasResponse(
        error_code=ErrorCode.INVALID_REQUEST, error_message="no", entries=None
    )
    with pytest.raises(ApiError, match="no") as raised:
        ScriptedDriver(lambda _: answer).run(describe_quotas({}))
    assert raised.value.code == ErrorCode.INVALID_REQUEST


def test_values_are_set_and_removed():
    driver = ScriptedDriver(
        lambda _: AlterClientQuotasResponse(entries=[AlterClientQuotasResponseEntryData()])
    )
    changes = {"producer_byte_rate": 5.0, "consumer_byte_rate": None}
    assert driver.run(alter_quotas({"client-id": "c"}, changes, validate_only=True)) is None
    (request,) = driver.requests(AlterClientQuotasRequest)
    (entry,) = request.entries
    assert [(op.key, op.value, op.remove) for op in entry.ops] == [
        ("producer_byte_rate", 5.0, False),
        ("consumer_byte_rate", 0, True),
    ]
    assert request.validate_only


def test_a_refusal_has_its_reason():
    entry = AlterClientQuotasResponseEntryData(
        error_code=ErrorCode.INVALID_REQUEST, error_message="too small"
    )
    driver = ScriptedDriver(lambda _: AlterClientQuotasResponse(entries=[entry]))
    error = driver.run(alter_quotas({"user": "u"}, {"producer_byte_rate": -1}))
    assert error is not None
    assert (error.code, error.message) == (ErrorCode.INVALID_REQUEST, "too small")


def test_an_answer_without_the_entity_is_refused():
    driver = ScriptedDriver(lambda _: AlterClientQuotasResponse(entries=[]))
    with pytest.raises(ProtocolError):
        driver.run(alter_quotas({"user": "u"}, {"producer_byte_rate": 1}))
