"""Every parameter of every public method, with values of a wrong type: one clear error, by every kind of client.

The methods and parameters are found by inspection, so a new one is tested without a line here. Each value goes to a
client of a broker in this process, to one that has not connected yet, to one with an open connection, and to the
asyncio client. A call may succeed (the value was right after all); otherwise it raises one error of the same text
everywhere, at once, and the client works afterwards.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import headrace
import headrace.aio
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.clients.network.pool import Pool
from headrace.embedded.groups import Group
from headrace.errors import (
    HeadraceError,
    InternalError,
    TransportError,
)

pytestmark = pytest.mark.slow  # not in `make check`

ZERO = headrace.TopicPartition("t", 0)
SLOW_S = 5.0
"""The longest time in seconds to refuse a wrong argument, on a busy machine."""


class Thing:
    """An object that no parameter accepts."""

    def __repr__(self) -> str:
        return "<a thing>"


THING = Thing()
WRONG: dict[str, Any] = {
    "an object": THING,
    "a class": Thing,
    "a number": 0,
    "a negative number": -5,
    "a large number": 2**70,
    "a fraction": 0.001,
    "not a number": float("nan"),
    "a boolean": True,
    "text": "te xt",
    "bytes": b"\xff",
    "None": None,
    "a list of objects": [THING],
    "a list of lists": [[]],
    "a dictionary of objects": {"a": THING},
    "a dictionary by object": {THING: 1},
    "a partition without a number": ("t", "x"),
    "a large partition": [headrace.TopicPartition("t", 2**40)],
    "a large offset": {ZERO: 2**70},
    "an offset of text": {ZERO: OffsetAndMetadata("x")},  # type: ignore[arg-type]  # it is wrong
    "a number as a config": {"retention.ms": [1]},
    "a generator": lambda: (each for each in [THING]),
}
VALID: dict[str, Any] = {
    "bindings": [],
    "changes": {"retention.ms": 60_000},
    "filters": [],
    "group": "g",
    "keys": None,
    "member_id": "m",
    "name": "n",
    "names": None,
    "offset": 0,
    "offsets": {ZERO: 0},
    "partition": 0,
    "partitions": [ZERO],
    "password": "secret",
    "start_offset": 0,
    "timestamp_ms": 0,
    "timestamps_ms": {ZERO: 0},
    "topic": "t",
    "topic_partition": ZERO,
    "topics": ["t"],
    "total": 2,
    "transactional_id": "x",
    "values": [b"x"],
    "assignor": None,
    "pattern": None,
    "address": "127.0.0.1:0",
    "duration_ms": 0,
}
"""Values for the other parameters of a method, by name."""
UNTYPED = {"value", "key", "values", "keys", "listener", "serde", "key_serde", "properties"}
"""Parameters that take, or may take, any object; a serde or the broker decides."""
LEFT_OUT = {"close", "wait_for", "run"}


def methods(cls: type) -> list[str]:
    return [
        name
        for name, member in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and name not in LEFT_OUT
    ]


def parameters(cls: type, name: str) -> list[inspect.Parameter]:
    return [
        each
        for each in inspect.signature(getattr(cls, name)).parameters.values()
        if each.name != "self" and each.kind is not inspect.Parameter.VAR_KEYWORD
    ]


CASES = [
    (cls, method, parameter.name)
    for cls in (headrace.Admin, headrace.Producer, headrace.Consumer)
    for method in methods(cls)
    for parameter in parameters(cls, method)
]


@pytest.fixture(scope="module")
def broker() -> Iterator[headrace.Broker]:
    with headrace.Broker() as broker:
        broker.create_topic("t", 1)
        broker.publish("t", b"x")
        yield broker


@pytest.fixture(scope="module")
def address(broker: headrace.Broker) -> str:
    return broker.listen()


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def arguments(cls: type, method: str, name: str, value: Any) -> dict[str, Any]:
    """Return the arguments of a call in which only `name` is wrong."""
    given = {
        each.name: VALID[each.name]
        for each in parameters(cls, method)
        if each.default is inspect.Parameter.empty and each.name != name
    }
    return {**given, name: value() if value is WRONG["a generator"] else value}


def make(cls: Any, target: Any) -> Any:
    if cls.__name__ == "Consumer":
        return cls(target, group="wrong-arguments", enable_auto_commit=False)
    return cls(target)


def ready(client: Any) -> Any:
    """Return what has the client in a state in which its methods are of use: a flow of its own, or None."""
    return client.assign([ZERO]) if hasattr(client, "assign") else None


def outcome(call: Callable[[], Any]) -> str:
    """Return "" for a call that succeeds, else its error; anything but a clear error is a failure of the test."""
    began = time.monotonic()
    failure: HeadraceError | None = None
    try:
        call()
    except HeadraceError as error:
        failure = error
    assert time.monotonic() - began < SLOW_S
    if failure is None:
        return ""
    unclear = isinstance(failure, InternalError) or "UNKNOWN_SERVER_ERROR" in str(failure)
    assert not unclear, repr(failure)
    if isinstance(
        failure, TransportError
    ):  # a time-out of 0 is right, and over at once; a name may have no address
        assert "in time" in str(failure) or "not known" in str(failure), repr(failure)
    assert str(failure).strip(), repr(failure)
    return f"{type(failure).__name__}: {failure}"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Requests that were given to connections."""
    calls: list[Any] = []
    submit = Pool.submit

    def counted(self: Any, call: Any, *rest: Any) -> None:
        calls.append(call.request)
        submit(self, call, *rest)

    monkeypatch.setattr(Pool, "submit", counted)
    return calls


def values_for(cls: type, method: str, name: str) -> dict[str, Any]:
    text = str(inspect.signature(getattr(cls, method)).parameters[name].annotation)
    # A number this large is a time-out that is right, and not to be waited for.
    leave_out = {"a large number"} if "float" in text or name == "max_records" else set()
    if "Call" in text:
        leave_out = {"a class"}  # it can be called
    return {what: value for what, value in WRONG.items() if what not in leave_out}


@pytest.mark.parametrize(
    ("cls", "method", "name"), CASES, ids=lambda each: getattr(each, "__name__", each)
)
def test_a_wrong_argument_is_refused_alike_everywhere(  # noqa: PLR0917 - fixtures and parameters
    broker: headrace.Broker,
    address: str,
    loop: asyncio.Runner,
    sent: list[Any],
    cls: type,
    method: str,
    name: str,
) -> None:
    aio_cls = getattr(headrace.aio, cls.__name__)
    with make(cls, broker) as local, make(cls, address) as connected:
        ready(local), ready(connected)

        async def open_aio() -> Any:
            client = make(aio_cls, address)
            if hasattr(client, "assign"):
                await client.assign([ZERO])
            return client

        asyncio_client = loop.run(open_aio())
        for what, value in values_for(cls, method, name).items():

            def call(client: Any, value: Any = value) -> Any:
                return getattr(client, method)(**arguments(cls, method, name, value))

            async def call_asyncio(call: Callable[[Any], Any] = call) -> None:
                made = call(asyncio_client)
                if inspect.isawaitable(made):
                    await asyncio.wait_for(made, SLOW_S)

            sent.clear()
            outcomes = {"connected": outcome(partial(call, connected))}
            asked = list(sent)
            outcomes["asyncio"] = outcome(lambda: loop.run(call_asyncio()))
            outcomes["in process"] = outcome(partial(call, local))
            if outcomes["connected"].startswith("ConfigError") and cls is not headrace.Consumer:
                with make(cls, address) as fresh:
                    outcomes["first call"] = outcome(partial(call, fresh))
            if value is THING and name not in UNTYPED:
                assert outcomes["connected"], f"{what} is taken"
                assert not asked, f"{what}: {asked}"
            errors = {re.sub(r" at 0x\w+", "", found) for found in outcomes.values()}
            if any(found.startswith("ConfigError") for found in errors):
                assert len(errors) == 1, f"{what}: {outcomes}"
        ready(local), ready(connected)
        loop.run(asyncio_client.close())


LOCAL_CASES = [
    (cls, method, parameter.name)
    for cls in (headrace.Broker, Group)
    for method in (*vars(cls), *(["listen", "advance"] if cls is headrace.Broker else []))
    if not method.startswith("_") and method not in LEFT_OUT and callable(getattr(cls, method))
    for parameter in parameters(cls, method)
]


@pytest.mark.parametrize(
    ("cls", "method", "name"), LOCAL_CASES, ids=lambda each: getattr(each, "__name__", each)
)
def test_an_embedded_broker_refuses_wrong_arguments(cls: type, method: str, name: str) -> None:
    with headrace.Broker(clock=headrace.ManualClock()) as broker:
        broker.create_topic("t", 1)
        broker.publish("t", b"x")
        broker.create_group("g")
        owner: Any = broker if cls is headrace.Broker else broker.group("g")
        for what, value in values_for(cls, method, name).items():
            call = partial(getattr(owner, method), **arguments(cls, method, name, value))
            found = outcome(call)
            assert found or value is not THING or name in UNTYPED, f"{what} is taken"
        assert broker.publish("t", b"x").offset >= 0


CLIENTS = (headrace.Admin, headrace.Producer, headrace.Consumer)
NEW_CASES = [
    (cls, parameter.name) for cls in CLIENTS for parameter in parameters(cls, "__init__")
] + [
    (cls, name)
    for cls, names in (
        (headrace.Admin, ["retry_backoff_ms", "metadata_max_age_ms", "bootstrap_servers"]),
        (
            headrace.Producer,
            ["delivery_timeout_ms", "max_request_size", "buffer_memory", "retries"],
        ),
        (
            headrace.Consumer,
            ["group_id", "session_timeout_ms", "fetch_max_bytes", "max_poll_records"],
        ),
    )
    for name in names
]


def use(client: Any) -> None:
    """Make a call that needs a broker."""
    if isinstance(client, headrace.Admin):
        client.topics()
    elif isinstance(client, headrace.Producer):
        client.partitions_for("t")
    else:
        client.end_offsets([ZERO])


@pytest.mark.parametrize(
    ("cls", "name"), NEW_CASES, ids=lambda each: getattr(each, "__name__", each)
)
@pytest.mark.parametrize("way", ["in process", "tcp"])
def test_a_client_is_not_made_of_wrong_arguments(
    broker: headrace.Broker, address: str, way: str, cls: type, name: str
) -> None:
    target = broker if way == "in process" else address
    for what, value in WRONG.items():
        given = value() if value is WRONG["a generator"] else value

        found = outcome(partial(make_and_use, cls, target, name, given))
        assert found or value is not THING, f"{what} is taken"


def make_and_use(cls: Any, target: Any, name: str, given: Any) -> None:
    first = [] if name == "target" else [target]
    with cls(*first, **{name: given}) as client:
        if (
            not isinstance(given, int | float) and name != "target"
        ):  # a time-out may be too short for a call
            use(client)


def make_broker(**given: Any) -> None:
    headrace.Broker(**given).close()


@pytest.mark.parametrize("name", [each.name for each in parameters(headrace.Broker, "__init__")])
def test_a_broker_is_not_made_of_wrong_arguments(
    name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # text is a directory, and made
    for what, value in WRONG.items():
        found = outcome(partial(make_broker, **{name: value}))
        assert found or value is not THING, f"{what} is taken"


@pytest.mark.parametrize("value", [3, True, 1.5, "3", 2**31])
def test_numbers_and_booleans_are_configs(value: Any, address: str) -> None:
    named = {bool: "unclean.leader.election.enable", float: "min.cleanable.dirty.ratio"}
    name = named.get(type(value), "retention.ms")
    value = 0.5 if isinstance(value, float) else value
    with headrace.Admin(address) as admin:
        admin.create_topic("typed", configs={name: value})
        try:
            text = {True: "true"}.get(value, str(value)) if isinstance(value, bool) else str(value)
            assert admin.configs("typed")[name].value == text
            admin.alter_configs("typed", {name: value})
            assert admin.configs("typed")[name].value == text
        finally:
            admin.delete_topic("typed")


def test_a_brokers_configs_may_be_numbers_and_booleans() -> None:
    with (
        headrace.Broker(configs={"num.partitions": 3, "auto.create.topics.enable": True}) as broker,
        headrace.Producer(broker) as producer,
    ):
        assert producer.partitions_for("made") == [0, 1, 2]
