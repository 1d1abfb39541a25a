"""`seen=` after `kill -9`: a member in another process recognises the records that a killed one has handled.

A member waits in the handler of the record "stop", and is killed there. Everything before it in its partition
was handled, and whether it was committed is the test's choice.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headrace
from tests.fixtures.processes import ServerProcess, running_server

WAIT_S = 60.0
NEVER_S = 3600

APP = """
import os, time, headrace

def note(*words):
    with open(os.environ["OUT"], "a", buffering=1) as out:
        out.write(" ".join(map(str, words)) + "\\n")

app = headrace.App(
    os.environ["BOOTSTRAP"], group=os.environ["WORKERS"], commit_interval_s={commit_s}, drain_timeout_s=1
)

@app.worker(
    "{topic}", dedupe=str, seen={seen}, session_timeout_ms=1500, heartbeat_interval_ms=200,
    delivery="{delivery}", transaction_ms={transaction_ms},
)
@app.publishes("{topic}-results")
def bill(order: str, context):
    if order.startswith("stop") and os.environ.get("STANDS_STILL"):
        note("stands", order, os.getpid())
        time.sleep({never_s})
    note("handled", order, os.getpid())
    return order

@app.hook
def report(event):
    if event.kind == "skipped":
        note("skipped", event.records[0].value.decode(), os.getpid())
"""
SEEN = {"topic": "headrace.SeenTopic()", "file": 'headrace.SeenFile("seen.db")'}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = ("--config", "group.min.session.timeout.ms=1000")
    with running_server(tmp_path_factory.mktemp("server"), *settings, memory=True) as server:
        yield server


class Place:
    """A directory with an app, a topic with two partitions, and the notes of the processes."""

    def __init__(self, directory: Path, bootstrap: str) -> None:
        self.directory = directory
        self.bootstrap = bootstrap
        self.name = directory.name
        self.out = directory / "out"
        self.out.touch()
        self.children: list[subprocess.Popen[bytes]] = []

    def write(self, seen: str, delivery: str, *, commits: bool) -> None:
        source = APP.format(
            topic=self.name,
            seen=SEEN[seen],
            delivery=delivery,
            commit_s=0.05 if commits else NEVER_S,
            transaction_ms=50 if commits else NEVER_S * 1000,
            never_s=NEVER_S,
        )
        (self.directory / "billing.py").write_text(source)
        with headrace.Admin(self.bootstrap) as admin:
            admin.create_topic(self.name, 2)
            admin.create_topic(f"{self.name}-results", 1)

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        known = {"OUT": str(self.out), "BOOTSTRAP": self.bootstrap, "WORKERS": self.name}
        with (self.directory / "log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "headrace", "run", "billing:app"],
                cwd=self.directory,
                env={**os.environ, **known, **environment},
                stdout=log,
                stderr=log,
            )
        self.children.append(child)
        return child

    def noted(self, kind: str) -> list[tuple[str, int]]:
        lines = [line.split() for line in self.out.read_text().splitlines()]
        return [(line[1], int(line[2])) for line in lines if line[0] == kind]

    def counted(self, kind: str) -> Counter[str]:
        return Counter(order for order, _ in self.noted(kind))

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > deadline:
                log = (self.directory / "log").read_text()
                raise AssertionError(f"not in time\n{self.out.read_text()}\n{log}")
            time.sleep(0.02)

    def members(self) -> int:
        with headrace.Admin(self.bootstrap) as admin:
            if self.name not in {each.group_id for each in admin.groups()}:
                return 0
            return sum(bool(each.assignment) for each in admin.members(self.name))

    def send(self, *orders: str) -> None:
        """Write records. The last character of a value is the number of its partition."""
        with headrace.Producer(self.bootstrap, serde="str") as producer:
            for order in orders:
                producer.send(self.name, order, partition=int(order[-1]))

    def committed(self) -> int:
        with headrace.Admin(self.bootstrap) as admin:
            return sum(max(0, at.offset) for at in admin.offsets(self.name).values())

    def results(self) -> Counter[str]:
        topic = headrace.TopicPartition(f"{self.name}-results", 0)
        with headrace.Consumer(
            self.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as reader:
            reader.assign({topic: 0})
            end, found = reader.end_offsets([topic])[topic], []
            while (reader.positions()[topic] or 0) < end:
                found += [record.value.decode() for record in reader.poll(1.0)]
        return Counter(found)

    def kill_the_one_that_stands_still(self) -> None:
        """Kill -9 a member that handled two orders of its partition, while another member works."""
        still = self.start(STANDS_STILL="1")
        self.start()
        self.until(lambda: self.members() == 2)
        self.send("a-0", "b-0", "stop-0", "a-1", "b-1", "stop-1")
        self.until(lambda: len(self.noted("handled")) == 5 and self.noted("stands"))
        if self.commits:
            self.until(lambda: self.committed() >= 5)
            # With exactly once, the file gets keys after the transaction: see docs/guides/workers.md.
            self.until(lambda: self.keys_in_file() in {None, 5})
        still.kill()
        still.wait()

    def keys_in_file(self) -> int | None:
        """Return the number of keys in the file; None if there is no file."""
        path = self.directory / "seen.db"
        if not path.exists():
            return None
        connection = sqlite3.connect(path)
        try:
            return int(connection.execute("SELECT count(*) FROM seen").fetchone()[0])
        finally:
            connection.close()

    commits = False

    @property
    def of_the_dead(self) -> str:
        """Return the number of the partition in which the member was killed."""
        [(order, _)] = self.noted("stands")
        return order[-1]


@pytest.fixture
def place(tmp_path: Path, server: ServerProcess) -> Iterator[Place]:
    place = Place(tmp_path, server.bootstrap)
    yield place
    for child in place.children:
        child.kill()
        child.wait()


@pytest.mark.parametrize("seen", SEEN)
def test_handled_records_without_a_commit_are_recognised(place: Place, seen: str) -> None:
    place.write(seen, "at_least_once", commits=False)
    place.kill_the_one_that_stands_still()
    assert place.committed() == 0
    number = place.of_the_dead
    place.until(lambda: place.counted("handled")[f"stop-{number}"])
    assert place.counted("skipped") == {f"a-{number}": 1, f"b-{number}": 1}
    assert set(place.counted("handled").values()) == {1}


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("seen", SEEN)
def test_committed_records_are_recognised_when_a_producer_repeats_them(
    place: Place, seen: str, delivery: str
) -> None:
    place.write(seen, delivery, commits=True)
    place.commits = True
    place.kill_the_one_that_stands_still()
    number = place.of_the_dead
    place.until(lambda: place.counted("handled")[f"stop-{number}"])
    assert not place.noted("skipped"), "what is committed does not come again"
    place.send(f"b-{number}", f"a-{number}", f"new-{number}")
    place.until(lambda: place.counted("handled")[f"new-{number}"])
    assert place.counted("skipped") == {f"a-{number}": 1, f"b-{number}": 1}
    assert set(place.counted("handled").values()) == {1}
    place.until(lambda: len(place.results()) == 7)
    assert set(place.results().values()) == {1}


def test_a_transaction_commits_seen_keys_and_offsets_together(place: Place) -> None:
    place.write("topic", "exactly_once", commits=False)
    place.kill_the_one_that_stands_still()
    number = place.of_the_dead
    assert place.committed() == 0
    place.until(lambda: place.counted("handled")[f"stop-{number}"])
    assert place.counted("handled")[f"a-{number}"] == 2, "neither result nor key were committed"
    assert not place.noted("skipped")
    for child in place.children:
        child.terminate()
        child.wait(WAIT_S)
    assert place.results() == Counter(["a-0", "b-0", "stop-0", "a-1", "b-1", "stop-1"])
