"""The blocking and the asyncio clients have the same methods, parameters and documentation."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.clients.admin import aio as admin_aio
from headrace.clients.admin import (
    aio_groups,
    aio_transactions,
    aio_users,
    blocking_groups,
    blocking_transactions,
    blocking_users,
)
from headrace.clients.admin import blocking as admin_blocking
from headrace.clients.consumer import aio as consumer_aio
from headrace.clients.consumer import blocking as consumer_blocking
from headrace.clients.producer import aio as producer_aio
from headrace.clients.producer import blocking as producer_blocking
from headrace.kinesis import aio as kinesis_aio
from headrace.kinesis import blocking as kinesis_blocking

TWINS = [
    (admin_blocking.Admin, admin_aio.Admin),
    (blocking_groups.GroupCalls, aio_groups.GroupCalls),
    (blocking_transactions.TransactionCalls, aio_transactions.TransactionCalls),
    (blocking_users.UserCalls, aio_users.UserCalls),
    (consumer_blocking.Consumer, consumer_aio.Consumer),
    (producer_blocking.Producer, producer_aio.Producer),
    (kinesis_blocking.Producer, kinesis_aio.Producer),
]
SPECIAL = {
    "__enter__": "__aenter__",
    "__exit__": "__aexit__",
    "__iter__": "__aiter__",
    "__next__": "__anext__",
}
"""Methods with another name in a class for asyncio."""
READY = {
    "Done": "None",
    "ReadyDict": "dict",
    "ReadyList": "list",
    "ReadySet": "frozenset",
    "RecordDelivery": "Delivery",
}
"""The type of methods of asyncio clients that wait for nothing, and the type of its result."""


def differences(blocking: type, asyncio_twin: type) -> Iterator[str]:
    """Yield what one of two classes has, takes or says that the other does not."""
    ours, theirs = members(blocking), members(asyncio_twin)
    wanted = {SPECIAL.get(name, name): member for name, member in ours.items()}
    yield from (f"only one has {name}" for name in wanted.keys() ^ theirs.keys())
    for name in wanted.keys() & theirs.keys():
        first, second = wanted[name], theirs[name]
        if isinstance(first, property) and isinstance(second, property):
            first, second = first.fget, second.fget
        if str(inspect.signature(first)) != awaited(str(inspect.signature(second))):
            yield f"{name}{inspect.signature(first)} and {name}{inspect.signature(second)}"
        if first.__doc__ != second.__doc__:
            yield f"{name} is documented as {first.__doc__!r} and as {second.__doc__!r}"


def awaited(signature: str) -> str:
    """Return a signature with what is there when an answer that is ready has been awaited."""
    for ready, plain in READY.items():
        signature = re.sub(rf"\b{ready}\b", plain, signature)
    return signature


def members(cls: type) -> dict[str, Any]:
    """Return what a program may use of a class."""
    special = {"__init__", *SPECIAL, *SPECIAL.values()}
    return {
        name: member
        for name, member in vars(cls).items()
        if (not name.startswith("_") or name in special)
        and (callable(member) or isinstance(member, property))
    }


@pytest.mark.parametrize("twins", TWINS, ids=lambda twins: twins[0].__name__)
def test_the_blocking_and_the_asyncio_client_are_alike(twins: tuple[type, type]) -> None:
    assert sorted(differences(*twins)) == []


@pytest.mark.parametrize("twins", TWINS, ids=lambda twins: twins[0].__name__)
def test_classes_are_documented_alike(twins: tuple[type, type]) -> None:
    blocking, asyncio_twin = twins
    assert blocking.__name__ == asyncio_twin.__name__
    assert blocking.__doc__
    assert asyncio_twin.__doc__


def test_a_renamed_parameter_a_changed_word_and_a_missing_method_are_noticed() -> None:
    class Blocking:
        def send(self, topic: str, *, key: bytes | None = None) -> None:
            """Send one record now."""

        def flush(self) -> None:
            """Flush all records now."""

        def __enter__(self) -> None: ...

    class Renamed:
        async def send(self, topic: str, *, keys: bytes | None = None) -> None:
            """Send one record now."""

        async def flush(self) -> None:
            """Flush all records later."""

    assert sorted(differences(Blocking, Blocking)) == [
        "only one has __aenter__",
        "only one has __enter__",
    ]
    found = sorted(differences(Blocking, Renamed))
    assert [line.split("(")[0].split(" is ")[0] for line in found] == [
        "flush",
        "only one has __aenter__",
        "send",
    ]
