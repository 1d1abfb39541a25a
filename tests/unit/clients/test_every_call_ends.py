"""Every public call of the clients ends in time with default settings, whatever fails or does not answer.

Each call is made over a real pool, engine and broker, with a simulated clock; see `virtual`. The fault
comes with the first request of the call, or with a later one, up to the last that the call makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headrace
from headrace.clients.engine import LATE_MS
from headrace.errors import ErrorCode, HeadraceError
from headrace.protocol import frame
from tests.unit.clients.test_wrong_arguments import VALID, methods, parameters
from tests.unit.clients.virtual import ADDRESS, Fault, VirtualDriver, virtual_clients

pytestmark = pytest.mark.slow  # not in `make check`

ZERO = headrace.TopicPartition("t", 0)
FAULTS = [
    "opening raises",
    "opening is silent",
    "refused",
    "writing raises",
    "closed",
    "silence",
    "garbage",
    "closing raises",
    "encoding raises",
    "decoding raises",
]
CODES = [
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]
DEFAULT_LIMIT_MS = 30_000
LIMITS_MS = {
    "send": 60_000,  # max.block.ms
    "send_many": 60_000,
    "flush": 120_000,  # delivery.timeout.ms
    "init_transactions": 60_000,
    "begin_transaction": 60_000,
    "commit_transaction": 120_000 + 60_000,
    "abort_transaction": 60_000,
    "send_offsets_to_transaction": 60_000,
    "poll": 1_000,
    "unsubscribe": 10_000,
    "close": 120_000,
}
SLACK_MS = LATE_MS + 2_000
"""The last pause before an attempt, and what the engine grants the transport."""

CASES = [
    (cls, method)
    for cls in (headrace.Admin, headrace.Producer, headrace.Consumer)
    for method in methods(cls)
]


@pytest.fixture
def broker() -> Iterator[headrace.Broker]:
    clock = headrace.ManualClock(auto_advance=False)
    with headrace.Broker(clock=clock) as broker:
        yield broker


SPECIAL: dict[str, dict[str, Any]] = {
    "reset_offsets": {"group": "g", "partitions": [ZERO], "to": "earliest"},
    "subscribe": {"topics": ["t"]},
}


def arguments(cls: type, method: str) -> dict[str, Any]:
    return SPECIAL.get(method) or {
        each.name: VALID[each.name]
        for each in parameters(cls, method)
        if each.default is each.empty
    }


def prepare(client: Any, cls: type, method: str) -> None:
    if cls is headrace.Consumer and method != "subscribe":
        client.assign([ZERO])
        client.position(ZERO)
    elif cls is headrace.Producer and client.config.transactional_id is None:
        client.partitions_for("t")


def make(cls: Any, method: str, **given: Any) -> Any:
    if cls is headrace.Consumer:
        return cls(ADDRESS, group="g", auto_offset_reset="earliest", **given)
    if cls is headrace.Producer and "transaction" in method:
        return cls(ADDRESS, transactional_id="x", **given)
    return cls(ADDRESS, **given)


def call(client: Any, cls: type, method: str) -> None:
    if method in {"commit_transaction", "abort_transaction", "send_offsets_to_transaction"}:
        client.begin_transaction()
        client.send("t", b"x")
    given = arguments(cls, method)
    if method == "send_offsets_to_transaction":
        consumer = headrace.Consumer(ADDRESS, group="g", enable_auto_commit=False)
        given["group"] = consumer.group_metadata()
        consumer._driver.close()
    made = getattr(client, method)(**given)
    if method == "send":
        made.result()


def spoil_codec(monkeypatch: pytest.MonkeyPatch, driver: VirtualDriver) -> None:
    """Make encoding and decoding raise an unexpected exception, if this is the fault."""
    encode, decode = frame.encode_request, frame.decode_response

    def encode_request(*given: Any) -> Any:
        if driver.strike("encoding raises"):
            raise RuntimeError("encoding failed")
        return encode(*given)

    def decode_response(*given: Any) -> Any:
        if driver.strike("decoding raises"):
            raise RuntimeError("decoding failed")
        return decode(*given)

    monkeypatch.setattr("headrace.clients.network.connection.encode_request", encode_request)
    monkeypatch.setattr("headrace.clients.network.connection.decode_response", decode_response)


def attempt(
    cls: type, method: str, fault: Fault, broker: headrace.Broker, monkeypatch: Any
) -> HeadraceError | None:
    """Make a call with a fault; return its error."""
    driver_of: Callable[[Any], VirtualDriver] = virtual_clients(monkeypatch, broker)
    client = make(cls, method)
    driver = driver_of(client)
    prepare(client, cls, method)
    with monkeypatch.context() as patch:
        spoil_codec(patch, driver)
        driver.fault, driver.requests = fault, 0
        began_ms = broker.now_ms()
        failure = None
        try:
            call(client, cls, method)
        except HeadraceError as error:
            failure = error
        took_ms = broker.now_ms() - began_ms
        limit_ms = LIMITS_MS.get(method, DEFAULT_LIMIT_MS)
        if method in {
            "commit_transaction",
            "abort_transaction",
            "send_offsets_to_transaction",
            "send",
        }:
            limit_ms += 120_000 + 60_000  # of what had to go before
        assert took_ms <= limit_ms + SLACK_MS, f"{fault}: {failure!r} after {took_ms} ms"
        driver.fault = None
        close(client)
    return failure


def close(client: Any) -> None:
    try:
        client.close()
    except HeadraceError:
        client._driver.close()


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize(("cls", "method"), CASES, ids=lambda each: getattr(each, "__name__", each))
def test_a_call_ends_in_its_time(
    broker: headrace.Broker, monkeypatch: pytest.MonkeyPatch, cls: type, method: str, kind: str
) -> None:
    with headrace.Admin(broker) as admin:
        admin.create_topic("t", 1)
    for since in range(1, 40):
        fault = Fault(kind, since)
        failure = attempt(cls, method, fault, broker, monkeypatch)
        if not fault.hits:
            break
        assert failure is None or str(failure).strip(), repr(failure)


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
@pytest.mark.parametrize(("cls", "method"), CASES, ids=lambda each: getattr(each, "__name__", each))
def test_the_error_of_a_call_names_the_error_code_of_the_broker(
    broker: headrace.Broker,
    monkeypatch: pytest.MonkeyPatch,
    cls: type,
    method: str,
    code: ErrorCode,
) -> None:
    with headrace.Admin(broker) as admin:
        admin.create_topic("t", 1)
    fault = Fault("errors", code=code)
    failure = attempt(cls, method, fault, broker, monkeypatch)
    if failure is not None and fault.hits:
        named = code.name in str(failure) or code.description in str(failure)
        assert named, repr(failure)


@pytest.mark.parametrize(
    ("kind", "words"), [("refused", "Connection refused"), ("closed", "closed the connection")]
)
@pytest.mark.parametrize(("cls", "method"), CASES, ids=lambda each: getattr(each, "__name__", each))
def test_the_error_of_a_call_names_why_no_broker_was_reached(  # noqa: PLR0917 - fixtures and parameters
    broker: headrace.Broker,
    monkeypatch: pytest.MonkeyPatch,
    cls: type,
    method: str,
    kind: str,
    words: str,
) -> None:
    with headrace.Admin(broker) as admin:
        admin.create_topic("t", 1)
    fault = Fault(kind)
    failure = attempt(cls, method, fault, broker, monkeypatch)
    if failure is not None and fault.hits:
        named = words in str(failure)
        assert named, repr(failure)


def test_a_record_that_a_full_disk_refuses_is_reported_within_seconds_and_named_by_the_time_out(
    broker: headrace.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with headrace.Admin(broker) as admin:
        admin.create_topic("t", 1)
    driver_of = virtual_clients(monkeypatch, broker)
    producer: Any = make(headrace.Producer, "send")
    producer.partitions_for("t")
    driver = driver_of(producer)
    driver.fault = Fault("errors", code=ErrorCode.KAFKA_STORAGE_ERROR)
    began_ms = broker.now_ms()
    sent = producer.send("t", b"x")
    with pytest.raises(HeadraceError, match=r"KAFKA_STORAGE_ERROR.*free space"):
        sent.result()
    assert broker.now_ms() - began_ms <= 120_000 + SLACK_MS
    warned_ms, text = driver.warnings[0]
    assert warned_ms - began_ms <= 3_000
    assert "KAFKA_STORAGE_ERROR" in text
    assert len(driver.warnings) <= 3, "it is not repeated with each attempt"
    driver.close()


@pytest.mark.parametrize("kind", ["refused", "opening is silent"])
@pytest.mark.parametrize("known", [False, True], ids=["from the start", "after a while"])
def test_a_broker_that_cannot_be_reached_is_one_warning_within_seconds(
    broker: headrace.Broker, monkeypatch: pytest.MonkeyPatch, kind: str, *, known: bool
) -> None:
    with headrace.Admin(broker) as admin:
        admin.create_topic("t", 1)
    driver_of = virtual_clients(monkeypatch, broker)
    producer: Any = make(headrace.Producer, "send", max_block_ms=50_000, delivery_timeout_ms=50_000)
    driver = driver_of(producer)
    if known:
        producer.partitions_for("t")
        for link in list(driver.pool.links.values()):
            driver.pool.lost(link, "closed the connection")
    driver.fault = Fault(kind)
    began_ms = broker.now_ms()
    with pytest.raises(HeadraceError):
        producer.send("t", b"x").result()
    [(warned_ms, text)] = driver.warnings
    assert text.startswith("broker ")
    assert warned_ms - began_ms <= 3_000
    driver.close()
