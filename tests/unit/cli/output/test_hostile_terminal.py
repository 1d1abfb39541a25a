"""Every command on a terminal, with hostile strings in all that others can write: no control character arrives."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import sys
import threading
import tty
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import headrace
from headrace.cli import main
from headrace.cli.output.printing import fail
from headrace.cli.output.terminal import shield, unshielded
from headrace.errors import ApiError, ErrorCode
from headrace.testing import Broker
from tests.conformance.cli.test_every_command import CLIENT_COMMANDS

EVIL = "\x1b]0;owned\x07\x9b2J\r\nFORGED \u202e"
"""Sets the title of a window, clears it, begins a line of its own, and turns the direction of writing."""
KAFKA_ACLS = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ARGUMENTS = {
    **CLIENT_COMMANDS,
    "group describe": [f"g{EVIL}"],
    "group offsets": [f"g{EVIL}"],
    "group lag": [f"g{EVIL}"],
    "group reset": [f"g{EVIL}", "--to", "earliest", "--dry-run"],
    "group remove-member": [f"g{EVIL}", "-i", f"m{EVIL}", "--yes"],
    "group stop-member": [f"g{EVIL}", "-i", f"m{EVIL}"],
    "group delete": [f"g{EVIL}", "--yes"],
    "group config": [f"g{EVIL}"],
    "consume -f": ["t", "-e", "-f", "%t %k %v %h{%k=%v }\n"],
    "consume -f json": ["t", "-e", "-f", "%k{json} %v{json}\n"],
    "consume --format json": ["t", "-e", "--format", "json"],
    "quota alter": ["--user", f"u{EVIL}", "--set", "producer_byte_rate=1000000"],
    "user describe": [f"u{EVIL}"],
    "user create": [f"u{EVIL}", "--password-file", "{password}"],
    "user delete": [f"u{EVIL}", "--yes"],
    "acl create": ["--allow-principal", f"User:u{EVIL}", "-o", "Read", "--group", f"g{EVIL}"],
}
SHOW = {"dlq show", "group list", "group describe", "user list", "user describe"}
"""Commands that are known to print what others have written, besides `consume`."""
UNTRIED = {"bridge", "produce"}
"""They print nothing but what they count, and their own arguments."""


class Terminal:
    """Runs commands with a terminal for output and errors, in this process."""

    def run(self, *arguments: str, environment: dict[str, str]) -> str:
        """Return what arrives at the terminal."""
        master, slave = pty.openpty()
        tty.setraw(slave)  # line feeds as they are
        found = bytearray()

        def read() -> None:
            with contextlib.suppress(OSError):  # the other end is closed
                while piece := os.read(master, 65_536):
                    found.extend(piece)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            self._run(slave, arguments, environment)
        finally:
            os.close(slave)
            reader.join()
            os.close(master)
        return found.decode("utf-8", "surrogateescape")

    @staticmethod
    def _run(slave: int, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        with contextlib.ExitStack() as undo:
            undo.enter_context(mock.patch.dict("os.environ", environment))
            undo.callback(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
            for name in ("stdout", "stderr"):
                stream = undo.enter_context(os.fdopen(os.dup(slave), "w", encoding="utf-8"))
                undo.enter_context(mock.patch.object(sys, name, stream))
            undo.enter_context(mock.patch.object(sys, "stdin", SimpleNamespace(isatty=bool)))
            with contextlib.suppress(SystemExit):
                main(list(arguments), prog_name="headrace")
            sys.stdout.flush()
            sys.stderr.flush()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    access = {"authorizer.class.name": KAFKA_ACLS, "super.users": "User:ANONYMOUS"}
    with Broker(configs=access) as running:
        for topic in ("t", "grown", "deleted", "dlq.t", "other"):
            running.create_topic(topic)
        for topic in ("t", "dlq.t"):
            running.publish(
                topic,
                f"value{EVIL}".encode() + b"\xff\x9b",
                key=f"key{EVIL}".encode(),
                headers=[
                    (f"name{EVIL}", f"header{EVIL}".encode()),
                    ("kafka_dlt-original-topic", f"topic{EVIL}".encode()),
                    ("kafka_dlt-exception-message", f"reason{EVIL}".encode()),
                    ("kafka_dlt-exception-fqcn", f"kind{EVIL}".encode()),
                ],
            )
        for user in ("u", f"u{EVIL}"):
            with headrace.Admin(running) as admin:
                admin.set_user(user, "a long password")
        reset: Any = {"auto.offset.reset": "earliest", "client.id": f"client{EVIL}"}
        with headrace.Consumer(
            running, group=f"g{EVIL}", group_instance_id=f"m{EVIL}", serde="bytes", **reset
        ) as consumer:
            consumer.subscribe(["t"])
            assert consumer.poll(10)
            consumer.commit()
            yield running


@pytest.fixture
def environment(broker: Broker, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "password").write_text("a long password")
    (tmp_path / "password").chmod(0o600)
    return {"HEADRACE_BOOTSTRAP": broker.bootstrap, "PASSWORD": str(tmp_path / "password")}


def arguments_of(name: str, environment: dict[str, str]) -> list[str]:
    given = {
        "n": name.replace(" ", "-"),
        "stream": "kinesis://s",
        "password": environment["PASSWORD"],
    }
    words = [word for word in name.split() if not word.startswith("-")]
    words = words[:1] if words[0] == "consume" else words
    return words + [each if "%" in each else each.format(**given) for each in ARGUMENTS[name]]


def check(shown: str) -> None:
    assert all(line.isprintable() for line in shown.split("\n")), repr(shown)
    assert not any(line.startswith("FORGED") for line in shown.split("\n")), shown


@pytest.mark.parametrize("name", [name for name in ARGUMENTS if name not in UNTRIED])
def test_control_characters_in_records_are_escaped(
    broker: Broker, environment: dict[str, str], name: str
) -> None:
    """Records, and members, groups, users and principals of any name."""
    shown = Terminal().run(*arguments_of(name, environment), environment=environment)
    check(shown)
    assert "Traceback" not in shown
    if name.startswith("consume") or name in SHOW:
        assert "owned" in shown, "the command has shown nothing"


@pytest.mark.parametrize("name", [name for name in ARGUMENTS if name not in UNTRIED])
def test_control_characters_in_broker_messages_are_escaped(
    broker: Broker, environment: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every error has a message that would begin a line, and name any command as done."""
    true = ApiError.for_code

    def lying(code: int, message: str | None = None, **more: Any) -> ApiError:
        return true(code, f"{message}{EVIL}", **more)

    monkeypatch.setattr(ApiError, "for_code", lying)
    denied = {**environment, "HEADRACE_CLIENT_CONFIG": ""}
    arguments = [
        each.replace("t", "no-such", 1) if each == "t" else each
        for each in arguments_of(name, denied)
    ]
    check(Terminal().run(*arguments, environment=environment))


def test_an_error_message_escapes_control_characters_and_line_breaks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        fail(f"the broker says {EVIL}", "second line")
    assert capsys.readouterr().err == (
        "Error: the broker says \\x1b]0;owned\\x07\\x9b2J\\r\\nFORGED \\u202e\nsecond line\n"
    )


def test_the_shield_is_before_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    stream: Any = SimpleNamespace(
        write=written.append, isatty=lambda: True, encoding="utf-8", buffer=1
    )
    piped: Any = SimpleNamespace(write=written.append, isatty=lambda: False)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", piped)
    for _ in range(2):
        shield()
    shielded: Any = sys.stdout
    shielded.write("a\tb\n\x1bc")
    shielded.writelines(["\x07"])
    assert written == ["a\tb\n\\x1bc", "\\x07"]
    assert shielded.buffer.write(b"\x1b[2J\xff\n") == 6
    assert written.pop() == "\\x1b[2J\\xff\n"
    assert shielded.encoding == "utf-8"
    assert unshielded(shielded) is stream
    assert sys.stderr is piped
    assert unshielded(sys.stderr) is piped


def test_errors_of_the_protocol_have_messages() -> None:
    """`test_control_characters_in_broker_messages_are_escaped` works through this."""
    assert EVIL in ApiError.for_code(ErrorCode.POLICY_VIOLATION, EVIL).message
