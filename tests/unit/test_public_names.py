"""The public names of `headrace` exist, and are imported with their first use."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
import headrace.testing

HOMES = vars(headrace)["_HOMES"]


@pytest.mark.parametrize("name", dir(headrace))
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(headrace, name) is not None
    assert name == "__version__" or name in HOMES


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Brooker"):
        getattr(headrace, "Brooker")  # noqa: B009 - the name is wrong on purpose


def test_the_asyncio_clients_are_an_attribute_and_a_module() -> None:
    aio = headrace.aio
    assert aio.__name__ == "headrace.aio"
    for name in aio.__all__:
        assert getattr(aio, name) is not getattr(headrace, name)


def test_importing_loads_nothing_but_the_package() -> None:
    code = "import sys, headrace; print(*[m for m in sys.modules if m.startswith('headrace.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_type_checkers_see_the_same() -> None:
    stub = Path(headrace.__file__).with_suffix(".pyi").read_text()
    told = {match[2]: match[1] for match in re.finditer(r"from (\S+) import (\w+) as", stub)}
    assert told.pop("Final", None) is None
    assert told.pop("aio") == "headrace"
    assert told == HOMES


ADMIN = """
    abort_hanging_transaction add_partitions alter_configs attach attachments close config configs create_acls
    create_group create_topic delete_acls delete_group delete_topic delete_user describe_acls describe_cluster
    describe_group describe_topic describe_transaction describe_users detach features fence_producer groups
    hanging_transactions lag list_users log_dirs members offsets producers remove_member reset_offsets set_user
    stop_member topics transactions truncate
"""
CONSUMER = """
    assign assignment begin_offsets close commit commit_async committed config end_offsets group_metadata joined lag
    offsets_for_times owns partitions_for pause paused poll position positions resume seek seek_to_beginning
    seek_to_committed seek_to_end seek_to_time stopped subscribe subscription unsubscribe
"""
PRODUCER = """
    abort_transaction begin_transaction close commit_transaction config delivered failed flush in_transaction
    init_transactions partitions_for send send_many send_offsets_to_transaction transaction wait_for
"""
BROKER = """
    add_partitions advance alter_configs clock close configs create_group create_topic delete_topic describe_topic group
    groups listen now_ms publish read topics truncate
"""
TESTING_BROKER = """
    NOTHING bootstrap committed faults held_by_clients messages remove reset snapshot uses wait_caught_up wait_for
    wait_until
"""
APP = "counters hook publishes run serve service status stop test worker"
GROUP = """
    attach attachments create delete detach lag members name offsets remove_member reset_offsets state stop_member
"""


def assert_public(thing: object, *expected: str) -> None:
    """Compare what completion offers of an object with lists: a new name is added here, and documented."""
    offered = {name for name in dir(thing) if not name.startswith("_")}
    assert offered == {name for names in expected for name in names.split()}


def test_the_public_names_of_a_broker_are_for_its_users() -> None:
    with headrace.Broker() as broker:
        assert_public(broker, BROKER)
        assert_public(broker.group("g"), GROUP)
    with headrace.testing.Broker() as broker:
        assert_public(broker, BROKER, TESTING_BROKER)
    assert_public(headrace.ManualClock(), "advance_to auto_advance now_ms")


def test_the_public_names_of_clients_are_for_their_users() -> None:
    with headrace.Broker() as broker:
        with headrace.Admin(broker) as admin:
            assert_public(admin, ADMIN)
        with headrace.Consumer(broker) as consumer:
            assert_public(consumer, CONSUMER)
        with headrace.Producer(broker) as producer:
            assert_public(producer, PRODUCER)
        assert_public(headrace.App(broker), APP)


def test_the_public_names_of_asyncio_clients_are_those_of_the_blocking_clients() -> None:
    async def look(broker: headrace.Broker) -> None:
        async with headrace.aio.Admin(broker) as admin:
            assert_public(admin, ADMIN)
        async with headrace.aio.Consumer(broker) as consumer:
            assert_public(consumer, CONSUMER)
        async with headrace.aio.Producer(broker) as producer:
            assert_public(producer, PRODUCER)

    with headrace.Broker() as broker:
        asyncio.run(look(broker))
