"""Workers in processes of their own, over TCP: killed, asked to stop, started again; and dead letters."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headrace
from tests.fixtures.processes import ServerProcess, running_server

WAIT_S = 30.0

APP = """
import os, signal, time, asyncio, headrace
OUT = os.environ["OUT"]

def note(*words):
    with open(OUT, "a", buffering=1) as out:
        out.write(" ".join(map(str, words)) + "\\n")

pace = dict(commit_interval_s=0.05, drain_timeout_s={drain})
app = headrace.App(os.environ["BOOTSTRAP"], group=os.environ["WORKERS"], **pace)

@app.worker(
    "orders", ordering="key", concurrency=4, retry=2, dead_letter=True, session_timeout_ms=6000
)
{kind} bill(order: dict, context):
    note("begin", order["id"], os.getpid())
    if order.get("bad"):
        raise ValueError("bad")
    {pause}
    note("end", order["id"], os.getpid())
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ServerProcess]:
    settings = ("--config", "group.min.session.timeout.ms=1000")
    with running_server(tmp_path_factory.mktemp("server"), *settings, memory=True) as server:
        yield server


class Place:
    """A directory with an app, its own topic, and the notes of the app."""

    def __init__(self, directory: Path, bootstrap: str) -> None:
        self.directory = directory
        self.bootstrap = bootstrap
        self.out = directory / "out"
        self.out.touch()
        self.group = directory.name  # killed members do not affect other tests
        self.environment = {
            **os.environ,
            "OUT": str(self.out),
            "BOOTSTRAP": bootstrap,
            "WORKERS": self.group,
        }
        self.children: list[subprocess.Popen[bytes]] = []

    def write(self, *, pause: str = "pass", kind: str = "def", drain: float = 20) -> None:
        (self.directory / "billing.py").write_text(APP.format(pause=pause, kind=kind, drain=drain))

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.directory / "log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "headrace.cli", "run", "billing:app", *arguments],
                cwd=self.directory,
                env=self.environment,
                stderr=log,
                start_new_session=True,  # a process group of its own, which ends with the test
            )
        self.children.append(child)
        return child

    def lines(self, word: str) -> list[list[str]]:
        return [line.split() for line in self.out.read_text().splitlines() if line.startswith(word)]

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def ended(self) -> Counter[int]:
        return Counter(int(line[1]) for line in self.lines("end"))

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"not in time; {self.out.read_text()}\n{self.log()}")
            time.sleep(0.01)

    def publish(self, *orders: dict) -> None:
        with headrace.Producer(self.bootstrap, serde="json", key_serde="str") as producer:
            for order in orders:
                producer.send("orders", order, key=str(order["id"]))

    def committed(self) -> int:
        with headrace.Admin(self.bootstrap) as admin:
            return sum(at.offset for at in admin.offsets(self.group).values())

    def dlq(self, *arguments: str):
        command = [sys.executable, "-m", "headrace.cli", "dlq", *arguments]
        done = subprocess.run(
            [*command, "--bootstrap", self.bootstrap, "--format", "json"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def runs(pid: int) -> bool:
    """Return whether a process runs. A process that has ended may wait for its parent in the state Z."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.fixture
def place(tmp_path: Path, server: ServerProcess) -> Iterator[Place]:
    place = Place(tmp_path, server.bootstrap)
    with headrace.Admin(server.bootstrap) as admin:
        admin.create_topic("orders", 3)
    yield place
    for child in place.children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    with headrace.Admin(server.bootstrap) as admin:
        for topic in admin.topics():
            admin.delete_topic(topic)


def test_a_killed_worker_loses_nothing(place: Place) -> None:
    place.write(pause="time.sleep(0.01)")
    first = place.start()
    place.publish(*({"id": number} for number in range(200)))
    place.until(lambda: len(place.ended()) > 30)
    first.kill()
    first.wait()
    finished_before = place.ended()
    committed = place.committed()
    assert committed <= len(finished_before) < 200
    place.start()
    place.until(lambda: len(place.ended()) == 200)
    twice = [number for number, count in place.ended().items() if count > 1]
    assert len(twice) <= sum(finished_before.values()) - committed, (
        "what was committed is not repeated"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_worker_that_is_asked_to_stop_finishes_what_it_began(place: Place, kind, number) -> None:
    gate = place.directory / "gate"
    sleep = "await asyncio.sleep(0.01)" if kind == "async def" else "time.sleep(0.01)"
    place.write(kind=kind, pause=f"while not os.path.exists({str(gate)!r}): {sleep}")
    child = place.start()
    place.publish(*({"id": number} for number in range(20)))
    place.until(lambda: len(place.lines("begin")) == 4)
    child.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.3)
    assert place.committed() == 0
    gate.touch()
    assert child.wait(WAIT_S) == 0
    begun, ended = place.lines("begin"), place.ended()
    assert len(begun) == len(ended) == 4
    committed = place.committed()
    assert committed <= 4
    place.start()
    place.until(lambda: len(place.ended()) == 20)
    assert sum(place.ended().values()) <= 20 + 4 - committed, (
        "what is committed does not come again"
    )


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_handler_that_does_not_end_in_time_is_neither_committed_nor_waited_for(
    place: Place, kind: str
) -> None:
    sleep = "await asyncio.sleep(60)" if kind == "async def" else "time.sleep(60)"
    place.write(kind=kind, pause=sleep, drain=0.2)
    child = place.start()
    place.publish({"id": 1})
    place.until(lambda: len(place.lines("begin")) == 1)
    child.terminate()
    assert child.wait(WAIT_S) == 0
    assert place.committed() == 0
    place.write()
    place.start()
    place.until(lambda: place.ended() == {1: 1})


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_second_signal_does_not_wait(place: Place, kind: str) -> None:
    place.write(kind=kind, pause="await asyncio.sleep(60)" if "async" in kind else "time.sleep(60)")
    child = place.start()
    place.publish({"id": 1})
    place.until(lambda: len(place.lines("begin")) == 1)
    child.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.3)
    child.send_signal(signal.SIGINT)
    assert child.wait(10) == 130
    assert place.committed() == 0
    assert "Traceback" not in place.log()


def test_two_workers_share_the_work_and_a_stop_hands_it_over(place: Place) -> None:
    place.write(pause="time.sleep(0.01)")
    first, second = place.start(), place.start()
    place.publish(*({"id": number} for number in range(100)))
    pids = {str(first.pid), str(second.pid)}
    numbers = iter(range(100, 100_000))

    def both_work() -> bool:
        place.publish({"id": next(numbers)})
        return {line[2] for line in place.lines("end")} == pids

    place.until(both_work)
    first.terminate()
    assert first.wait(WAIT_S) == 0
    total = next(numbers)
    place.publish({"id": total})
    place.until(lambda: len(place.ended()) == total + 1)
    assert set(place.ended().values()) == {1}, "a stop in order repeats nothing"


def test_the_app_starts_again_when_its_code_changes(place: Place) -> None:
    place.write(pause="note('old')")
    child = place.start("--reload")
    place.publish({"id": 1})
    place.until(lambda: place.lines("old"))
    place.write(pause="note('new')  # changed")
    place.until(lambda: "changed: restarting the app" in place.log())
    place.until(lambda: place.log().count("running billing:app") == 2)
    place.publish({"id": 2})
    place.until(lambda: place.lines("new"))
    (place.directory / "billing.py").write_text("broken(")
    place.until(lambda: "the app ended with 1" in place.log())
    child.terminate()
    assert child.wait(WAIT_S) in (0, 1)
    assert place.ended() == {1: 1, 2: 1}


def test_the_app_stops_when_the_command_with_reload_is_killed(place: Place) -> None:
    place.write()
    child = place.start("--reload")
    place.publish({"id": 1})
    place.until(lambda: place.lines("end"))
    (pid,) = {int(line[2]) for line in place.lines("end")}
    child.kill()
    place.until(lambda: not runs(pid))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("billing", "expected MODULE:APP or FILE:APP"),
        ("nowhere:app", "no module 'nowhere'"),
        ("billing:nothing", "billing:nothing is nothing"),
        ("billing:note", "not a headrace.App"),
    ],
)
def test_an_app_that_is_not_there_is_wrong_usage(place: Place, target: str, message: str) -> None:
    place.write()
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "run", target],
        cwd=place.directory,
        env=place.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr


def test_dead_letters_are_listed_shown_sent_back_once_and_purged(place: Place) -> None:
    place.write()
    child = place.start()
    place.publish({"id": 1, "bad": 1}, {"id": 2}, {"id": 3, "bad": 1})
    place.until(lambda: place.committed() == 3)
    assert place.dlq("list") == [
        {"topic": "dlq.orders", "records": 2, "waiting": 2, "last_error": "ValueError"}
    ]
    letters = place.dlq("show", "orders")
    assert {letter["key"] for letter in letters} == {"1", "3"}
    assert {letter["error"] for letter in letters} == {"bad"}
    assert {letter["attempts"] for letter in letters} == {2}
    assert len(place.dlq("show", "dlq.orders", "-n", "1")) == 1

    expected = {"topic": "dlq.orders", "sent": 2, "passed_over": 0, "homeless": 0, "left": []}
    assert place.dlq("redrive", "orders", "--dry-run") == {**expected, "dry_run": True}
    assert place.dlq("show", "orders", "--waiting") == letters

    child.terminate()
    assert child.wait(WAIT_S) == 0
    text = (place.directory / "billing.py").read_text()
    (place.directory / "billing.py").write_text(text.replace('order.get("bad")', "False"))
    assert place.dlq("redrive", "orders") == {**expected, "dry_run": False}
    assert place.dlq("redrive", "orders")["sent"] == 0
    assert place.dlq("show", "orders", "--waiting") == []
    place.start()
    place.until(lambda: place.ended() == {1: 1, 2: 1, 3: 1})

    assert place.dlq("purge", "orders", "--dry-run", "-y")["deleted"] == 2
    assert place.dlq("purge", "orders", "--sent", "-y")["deleted"] == 2
    assert place.dlq("list")[0]["records"] == 0


def test_a_dead_letter_that_returns_is_not_sent_for_ever(place: Place) -> None:
    place.write()
    place.start()
    place.publish({"id": 1, "bad": 1})
    place.until(lambda: topics(place))
    for count in (1, 2):
        place.until(functools.partial(has_letters, place, count))
        assert place.dlq("redrive", "orders", "--max-redrives", "2")["sent"] == 1
    place.until(functools.partial(has_letters, place, 3))
    result = place.dlq("redrive", "orders", "--max-redrives", "2")
    assert (result["sent"], result["passed_over"]) == (0, 1)


def has_letters(place: Place, count: int) -> bool:
    return len(place.dlq("show", "orders")) == count


def topics(place: Place) -> bool:
    with headrace.Admin(place.bootstrap) as admin:
        return "dlq.orders" in admin.topics()
