"""docs/guides/operations.md: its commands are run in order, by a shell, and print what the page shows."""

from __future__ import annotations

import configparser
import contextlib
import re
import shlex
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import click
import pytest

import headrace
from headrace.cli import main
from headrace.errors import HeadraceError
from tests.docs.console import Step, run_shell, steps, users_environment
from tests.fixtures.kafka import free_ports
from tests.fixtures.processes import READY_LINE, ServerProcess

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "operations.md").read_text()
STEPS = [step for step in steps(PAGE) if step.kind == "console"]
UNIT = re.findall(r"```ini\n(.*?)```", PAGE, flags=re.DOTALL)[0]


class Machine:
    """The directory, the port and the brokers of one run of the page."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = str(free_ports(1)[0])
        self.pid = "4711"
        self.brokers: list[subprocess.Popen[str]] = []
        self.environment = {
            **users_environment(),
            "HEADRACE_BOOTSTRAP": f"127.0.0.1:{self.port}",
        }

    def here(self, text: str) -> str:
        """Return a command with the port and the process id of this run."""
        return text.replace("9092", self.port).replace("4711", self.pid)

    def take(self, step: Step) -> None:
        if step.text.endswith("&"):
            self.serve(step)
        else:
            self.run(step)

    def serve(self, step: Step) -> None:
        broker = subprocess.Popen(
            ["bash", "-c", f"umask 077; exec {self.here(step.text).removesuffix('&')}"],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.brokers.append(broker)
        assert broker.stdout is not None
        line = READY_LINE.fullmatch(broker.stdout.readline().encode())
        assert line is not None, (self.directory / "server.log").read_text()
        self.pid = line["pid"].decode()
        assert line.group() == f"{self.here(step.shown[0])}\n".encode()
        # The commands wait for the end of the process. It ends when its parent has read its exit code.
        threading.Thread(target=broker.wait, daemon=True).start()

    def run(self, step: Step) -> None:
        done = run_shell(self.here(step.text), self.directory, self.environment)
        assert done.returncode == 0, (step.text, done.stdout, done.stderr)
        if step.shown:
            assert [line.split() for line in done.stdout.splitlines()] == [
                line.split() for line in step.shown
            ], step.text

    def stop(self) -> None:
        for broker in self.brokers:
            if broker.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    broker.send_signal(signal.SIGCONT)
                    broker.terminate()
            assert broker.wait(15) == 0
            assert broker.stdout is not None
            broker.stdout.close()


def test_every_command_of_the_page_works(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert len(STEPS) > 30
    try:
        for step in STEPS:
            machine.take(step)
    finally:
        machine.stop()
    assert len((tmp_path / "orders.jsonl").read_text().splitlines()) == 1100


def write_one(data: Path, log: Path) -> None:
    with (
        ServerProcess(data, log_path=log) as server,
        headrace.Producer(server.bootstrap) as producer,
    ):
        producer.send("orders", b"one").result()


def test_the_backup_of_a_stopped_broker_has_the_records(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    write_one(data, log)
    shutil.copytree(data, tmp_path / "backup")
    with (
        ServerProcess(tmp_path / "backup", log_path=log) as server,
        headrace.Consumer(server.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([headrace.TopicPartition("orders", 0)])
        assert [record.value for record in consumer.poll(10)] == [b"one"]


def values(bootstrap: str, topic: str) -> list[int]:
    """Return the committed values of a topic, sorted."""
    zero = headrace.TopicPartition(topic, 0)
    found: list[int] = []
    with headrace.Consumer(
        bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign([zero])
        end = consumer.end_offsets([zero])[zero]
        while consumer.position(zero) < end:
            found += [int(record.value) for record in consumer.poll(0.5)]
    return sorted(found)


def test_a_copy_of_a_paused_broker_has_every_acknowledged_transaction(
    tmp_path: Path,
) -> None:
    committed = 0
    busy, stop = threading.Event(), threading.Event()

    def produce(bootstrap: str) -> None:
        nonlocal committed
        with headrace.Producer(bootstrap, transactional_id="billing") as producer:
            while not stop.is_set():
                with producer.transaction():
                    for number in range(committed, committed + 20):
                        producer.send("orders", b"%d" % number)
                        producer.send("invoices", b"%d" % number)
                committed += 20
                if committed > 500:
                    busy.set()

    data, log = tmp_path / "data", tmp_path / "log"
    with ServerProcess(data, log_path=log) as server:
        thread = threading.Thread(target=produce, args=(server.bootstrap,))
        thread.start()
        try:
            assert busy.wait(30)
            acknowledged = committed
            server.process.send_signal(signal.SIGSTOP)
            shutil.copytree(data, tmp_path / "backup")
        finally:
            server.process.send_signal(signal.SIGCONT)
            stop.set()
            thread.join()
    with ServerProcess(tmp_path / "backup", log_path=log) as server:
        orders = values(server.bootstrap, "orders")
        assert orders == values(server.bootstrap, "invoices") == list(range(len(orders)))
        assert len(orders) >= acknowledged


def test_a_broker_without_space_refuses_records_and_serves_consumers(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    write_one(data, log)
    short = ("--config", "headrace.log.dir.min.free.bytes=1000000T")
    with ServerProcess(data, log_path=log, arguments=short) as server:
        with headrace.Producer(server.bootstrap, delivery_timeout_ms=2000) as producer:
            future = producer.send("orders", b"two")
            with pytest.raises(HeadraceError, match="KAFKA_STORAGE_ERROR"):
                future.result()
        with headrace.Consumer(
            server.bootstrap, group="billing", auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe(["orders"])
            while not (records := consumer.poll(10)):
                pass
            assert [record.value for record in records] == [b"one"]
            consumer.commit()
        for event in ("log_directory_short_of_space", "produce_refused_for_want_of_space"):
            assert event in server.log


def test_the_unit_uses_options_that_exist() -> None:
    unit = configparser.ConfigParser(strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # names of systemd have capitals
    unit.read_string(UNIT)
    program, command, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert (Path(program).name, command) == ("headrace", "serve")
    serve = main.get_command(click.Context(main), command)
    assert serve is not None
    known = {name for each in serve.params for name in each.opts}
    assert known.issuperset(each for each in arguments if each.startswith("-"))
    assert unit["Service"]["StateDirectory"] in unit["Service"]["ExecStart"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = shutil.which("true")
    file = tmp_path / "headrace.service"
    file.write_text(
        UNIT.replace("/opt/headrace/bin/headrace", str(program)).replace(
            "=headrace\n", "=root\n", 2
        )
    )
    done = subprocess.run(
        ["systemd-analyze", "verify", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert str(file) not in done.stderr, done.stderr
    assert "headrace.service" not in done.stderr, done.stderr
