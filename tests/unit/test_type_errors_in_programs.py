"""Errors that mypy finds in users' programs.

Each `type: ignore` stands at a mistake that mypy has to find: mypy reports one that is not needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, assert_type

import pytest

import headrace
from headrace.clients.config import check_names
from headrace.errors import ConfigError
from headrace.testing import context
from tools import generate_client_properties

if TYPE_CHECKING:

    def plain(order: str, context: headrace.SyncContext) -> int:
        sent = context.publish("audit", order)
        assert_type(sent, headrace.RecordMetadata)
        return sent.offset

    async def coroutine(order: str, context: headrace.Context) -> int:
        sent = await context.publish("audit", order)
        assert_type(sent, headrace.RecordMetadata)
        context.publish("audit", order)  # type: ignore[unused-awaitable]  # it is to be awaited
        _ = context.publish("audit", order).offset  # type: ignore[attr-defined]  # an awaitable has no offset
        return sent.offset

    def mistyped() -> None:
        app = headrace.App("localhost:9092", request_timeout=5)  # type: ignore[call-arg]  # _ms is missing
        app.worker("orders", orderin="key")  # type: ignore[call-arg]  # it is ordering=
        app.worker("orders", ordering="keyy")  # type: ignore[arg-type]  # it is "key"
        app.worker("orders", retries=3)  # type: ignore[call-arg]  # it is retry=
        app.worker("orders", group="g", max_poll_records=5, assignor="range", tags=["a"])
        headrace.Consumer(session_timeout="4")  # type: ignore[call-arg]  # _ms is missing
        headrace.Consumer(session_timeout_ms="4")  # type: ignore[arg-type]  # a number
        headrace.Consumer(session_timeout_ms=4, ssl_ca_location=None, fetch_wait_max_ms=5)
        headrace.aio.Consumer(value_deserializer=str)  # type: ignore[call-arg]  # it is serde=
        headrace.Producer(retrys=3)  # type: ignore[call-arg]  # it is retries=
        headrace.Producer(retries=3, compression_codec="zstd", request_required_acks="all")
        headrace.aio.Producer(max_poll_records=3)  # type: ignore[call-arg]  # a consumer's
        headrace.Admin(linger_ms=3)  # type: ignore[call-arg]  # a producer's
        headrace.aio.Admin(retry_backoff_ms=3)

    async def tried() -> None:
        plain("one", context())
        await coroutine("one", context())


def test_the_context_of_a_plain_function_returns_where_a_record_went() -> None:
    app = headrace.App(group="g")
    places: list[tuple[str, int]] = []

    @app.worker("orders")
    def handle(order: str, context: headrace.SyncContext) -> None:
        sent = context.publish("audit", order)
        places.append((sent.topic, sent.offset))

    with app.test() as t:
        t.produce("orders", "one")
        t.wait_idle()
    told = context("orders")
    handle("two", told)
    assert places == [("audit", 0), ("audit", 0)]


def test_the_names_of_properties_are_those_that_constructors_accept() -> None:
    assert generate_client_properties.document() == generate_client_properties.TARGET.read_text(), (
        "make generate"
    )
    for face in generate_client_properties.FACES:
        names = {name for name, _ in generate_client_properties.accepted(face)}
        assert len(names) > 20
        check_names(face.config, names - face.besides)


def untyped(**properties: Any) -> Any:
    return properties


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda app: app.worker("t", retries=3), "retry=3"),
        (lambda app: app.worker("t", value_deserializer=str), "serde="),
        (lambda app: app.worker("t", orderin="key"), "unknown property 'orderin'"),
        (lambda app: app.worker("t", key_serde="str"), "context.key"),
        (lambda _: headrace.Producer(**untyped(value_serializer=str)), "give serde="),
        (lambda _: headrace.Consumer(**untyped(**{"key.deserializer": str})), "give key_serde="),
    ],
)
def test_names_of_other_clients_are_reported_at_their_line(
    make: Callable[[Any], object], words: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        make(headrace.App(group="g"))


def test_a_coroutine_function_with_the_context_of_a_plain_one_is_refused() -> None:
    app = headrace.App(group="g")
    with pytest.raises(ConfigError, match=r"annotate its context as headrace\.Context"):

        @app.worker("orders")
        async def handle(order: str, context: headrace.SyncContext) -> None: ...
