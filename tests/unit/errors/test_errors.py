from __future__ import annotations

import pickle

import pytest
from kio.schema.errors import ErrorCode as TheirErrorCode

from headrace import errors
from headrace.errors import ApiError, ErrorCode, HeadraceError


def test_codes_and_retriability_are_kafkas() -> None:
    ours = {(code.name, int(code), code.retriable) for code in ErrorCode}
    theirs = {(code.name.upper(), int(code.value), code.retriable) for code in TheirErrorCode}
    assert ours >= theirs


def test_every_error_code_has_its_own_description() -> None:
    descriptions = [code.description for code in ErrorCode]
    assert all(text.endswith(".") for text in descriptions)
    assert len(set(descriptions)) == len(descriptions)


def test_a_code_of_the_future_is_kept_as_a_number() -> None:
    code = ErrorCode(9999)
    assert code == 9999
    assert code.name == "ERROR_9999"
    assert not code.retriable
    assert "9999" in code.description
    assert 9999 not in [int(known) for known in ErrorCode]
    with pytest.raises(ValueError, match="not a code"):
        ErrorCode("not a code")  # type: ignore[arg-type]  # that is the point


def test_an_error_has_the_class_of_its_code() -> None:
    error = ApiError.for_code(3, "no flights")
    assert type(error) is errors.UnknownTopicOrPartitionError
    assert (error.code, error.message, error.retriable) == (3, "no flights", True)
    assert str(error) == "UNKNOWN_TOPIC_OR_PARTITION: no flights"
    assert type(ApiError.for_code(ErrorCode.STALE_BROKER_EPOCH)) is ApiError
    assert ApiError(9999).code == 9999
    assert str(ApiError(ErrorCode.NOT_CONTROLLER)).endswith(ErrorCode.NOT_CONTROLLER.description)


def test_each_code_has_one_class_at_most() -> None:
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, ApiError) and hasattr(value, "CODE")
    ]
    codes = [cls.CODE for cls in classes]
    assert len(set(codes)) == len(codes) > 20
    assert all(type(ApiError.for_code(cls.CODE)) is cls for cls in classes)


def test_errors_survive_pickling() -> None:
    for error in (errors.TopicAlreadyExistsError("flights"), ApiError(77, "x"), ApiError(9999)):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert (copy.code, copy.message) == (error.code, error.message)


def test_every_exception_has_one_base() -> None:
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, HeadraceError)
