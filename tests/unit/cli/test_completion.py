"""Completion, by what `headrace completion bash` prints, in a real bash."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import headrace
from headrace.cli import main
from headrace.testing import Broker
from headrace.types import TopicPartition

pytestmark = pytest.mark.slow  # not in `make check`

TIMEOUT_S = 60
SCRIPT = """
eval "$(headrace completion bash)"
COMP_LINE={line}
COMP_POINT=${{#COMP_LINE}}
_headrace_completion headrace
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
"""Bash calls the function so when its user presses the Tab key."""


PATIENT = f"""
from headrace.cli.arguments import completion
from headrace.cli import main

completion.DEADLINE_S = {TIMEOUT_S}
completion.REQUEST_MS = {TIMEOUT_S * 1000}
main(prog_name="headrace")
"""
"""The command, with time enough for a broker on a busy machine."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        for topic in ("orders", "orders-old", "invoices", "headrace-spark-claims", "dlq.orders"):
            running.create_topic(topic)
        running.publish("orders", "one")
        for group in ("billing", "a:b:c", "headrace-redrive"):
            with headrace.Consumer(running, group=group, auto_offset_reset="earliest") as consumer:
                consumer.subscribe(["orders"])
                assert consumer.poll(10)
        yield running


@pytest.fixture
def environment(broker: Broker, tmp_path: Path) -> dict[str, str]:
    command = tmp_path / "bin" / "headrace"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\n{PATIENT}")
    command.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "HEADRACE_BOOTSTRAP": broker.bootstrap,
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }


def as_users_have_it(environment: dict[str, str]) -> None:
    command = Path(environment["PATH"].split(os.pathsep)[0]) / "headrace"
    command.write_text(f"#!{sys.executable}\nfrom headrace.cli import main; main()\n")


def completed(line: str, environment: dict[str, str]) -> list[str]:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    done = subprocess.run(
        [bash, "--norc", "--noprofile", "-c", SCRIPT.format(line=shlex.quote(line))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("headrace top", ["topic"]),
        ("headrace topic de", ["delete", "describe"]),
        ("headrace topic list --int", ["--internal"]),
        ("headrace topic describe ", ["dlq.orders", "invoices", "orders", "orders-old"]),
        ("headrace topic describe orders or", ["orders-old"]),
        ("headrace topic describe __consumer", ["__consumer_offsets"]),
        ("headrace topic describe headrace-s", ["headrace-spark-claims"]),
        ("headrace consume or", ["orders", "orders-old"]),
        ("headrace consume orders -g b", ["billing"]),
        ("headrace group describe ", ["a:b:c", "billing"]),
        ("headrace group reset headrace-", ["headrace-redrive"]),
        ("headrace group reset billing -t inv", ["invoices"]),
        ("headrace dlq show o", ["orders"]),
        ("headrace group describe a:b", ["b:c"]),
        ("headrace group describe 'bi", ["billing"]),
    ],
)
def test_commands_options_and_names(
    words: str, found: list[str], environment: dict[str, str]
) -> None:
    assert completed(words, environment) == found


def test_names_that_a_shell_would_run_are_left_out(
    broker: Broker, environment: dict[str, str]
) -> None:
    """Any client may choose the name of a group, and bash puts what it completes on the line as it is."""
    harmful = ("zz;id", "zz$(id)", "zz`id`", "zz|id", "zz\nid", "zz id", "zz'id", "-zz")
    start = {TopicPartition("orders", 0): 0}
    for group in (*harmful, "zz-fine:1"):
        with headrace.Consumer(broker, group=group) as consumer:
            consumer.assign(start)
            consumer.commit(start)
    assert completed("headrace group describe zz", environment) == ["zz-fine:1"]
    assert "-zz" not in completed("headrace group describe ", environment)


def test_names_come_from_where_the_command_asks(
    broker: Broker, environment: dict[str, str]
) -> None:
    del environment["HEADRACE_BOOTSTRAP"]
    named = f"headrace topic describe -b {broker.bootstrap} inv"
    assert completed(named, environment) == ["invoices"]
    add = ["headrace", "context", "add", "mine", "-b", broker.bootstrap]
    subprocess.run(add, env=environment, check=True, timeout=TIMEOUT_S)
    assert completed("headrace topic describe --context m", environment) == ["mine"]
    assert completed("headrace topic describe --context mine inv", environment) == ["invoices"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:9092", "nonsense"])
def test_completion_prints_nothing_when_no_broker_answers(
    address: str, environment: dict[str, str]
) -> None:
    as_users_have_it(environment)
    environment["HEADRACE_BOOTSTRAP"] = address
    assert completed("headrace topic describe o", environment) == []
    environment["HEADRACE_CONTEXT"] = "missing"
    assert completed("headrace topic describe o", environment) == []


def test_commands_are_completed_without_importing_them() -> None:
    code = "import sys; from headrace.cli import main; import click\n"
    code += "found = main.shell_complete(click.Context(main), 't')\n"
    code += "print([each.value for each in found], 'headrace.cli.commands.topic' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert done.stdout.strip() == "['topic', 'transaction'] False"


def test_the_tab_key_completes_names(broker: Broker, environment: dict[str, str]) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    master, slave = pty.openpty()
    environment |= {"PS1": "", "TERM": "dumb", "HEADRACE_BOOTSTRAP": "127.0.0.1:1"}
    with subprocess.Popen(
        [bash, "--norc", "--noprofile", "-i"],
        env=environment,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    ) as shell:
        os.close(slave)
        try:
            os.write(master, b'eval "$(headrace completion bash)"; echo rea""dy\n')
            _read_until(master, b"\nready")
            # Bash takes HOST:PORT apart; the script does not.
            os.write(master, f"headrace topic describe -b {broker.bootstrap} inv\t".encode())
            _read_until(master, b"invoices")
        finally:
            shell.kill()
            os.close(master)


def _read_until(descriptor: int, wanted: bytes) -> bytes:
    seen = b""
    deadline = time.monotonic() + TIMEOUT_S
    while wanted not in seen:
        ready, _, _ = select.select([descriptor], [], [], deadline - time.monotonic())
        assert ready, seen
        seen += os.read(descriptor, 4096)
    return seen


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert "_HEADRACE_COMPLETE" in result.stdout


def test_every_topic_and_group_is_completed() -> None:
    missing = []
    for name, command in _commands(main):
        for parameter in command.params:
            metavar = (parameter.metavar or "").strip("[].")
            own = parameter._custom_shell_complete is not None
            if metavar.split("[")[0] in {"TOPIC", "GROUP"} and not own:
                missing.append((name, parameter.name))
    # What a command makes, and what is no group of a broker, cannot be completed.
    expected = {"topic create", "group create"}
    assert {name for name, _ in missing if not name.startswith("kinesis")} == expected


def _commands(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for each in command.list_commands(context):
        found = command.get_command(context, each)
        assert found is not None
        yield from _commands(found, f"{name} {each}".strip())


def test_a_silent_server_is_not_waited_for(environment: dict[str, str]) -> None:
    import socket

    as_users_have_it(environment)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        environment["HEADRACE_BOOTSTRAP"] = "{}:{}".format(*silent.getsockname())
        began = time.monotonic()
        assert completed("headrace topic describe o", environment) == []
        assert time.monotonic() - began < TIMEOUT_S / 2
