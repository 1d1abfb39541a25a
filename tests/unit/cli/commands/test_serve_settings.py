"""Settings of `serve` and `dev`: files, assignments; and that help costs no more than click."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli import SUMMARIES, main
from headrace.cli.arguments.settings_files import (
    broker_settings,
    read_properties,
    split_assignments,
)
from headrace.config.broker import parse_broker_config
from headrace.config.environment import variable_of
from headrace.errors import ConfigError
from headrace.server import process
from headrace.server.listen import chosen_listeners
from headrace.server.process import ServeOptions


class Journal:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))

    def warning(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))

    def error(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))


def test_assignments_are_split_at_the_first_equals_sign() -> None:
    given = ["num.partitions=3", " log.dirs = /a=b ", "advertised.listeners="]
    expected = {"num.partitions": "3", "log.dirs": "/a=b", "advertised.listeners": ""}
    assert split_assignments(given) == expected
    for wrong in ("num.partitions", "=3", ""):
        with pytest.raises(ConfigError, match="KEY=VALUE"):
            split_assignments([wrong])


def test_a_properties_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(
        "# comment\n! comment\n\nnum.partitions=3\nlog.retention.ms : -1\n"
        "advertised.listeners=PLAINTEXT://\\\n    example.org:9092\nnum.io.threads=8\n"
    )
    journal = Journal()
    assert read_properties(path, journal) == {
        "num.partitions": "3",
        "log.retention.ms": "-1",
        "advertised.listeners": "PLAINTEXT://example.org:9092",
        "num.io.threads": "8",
    }
    assert not journal.lines


@pytest.mark.parametrize("name", ["server.properties", "server.toml"])
def test_a_file_that_begins_with_a_byte_order_mark(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(
        b"\xef\xbb\xbf"
        + (b'"num.partitions"=3\n' if name.endswith("toml") else b"num.partitions=3\n")
    )
    assert read_properties(path, Journal()) == {"num.partitions": "3"}


def test_serve_accepts_the_properties_file_that_kafka_ships(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.bootstrap.servers=localhost:9093\n"
        "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\ninter.broker.listener.name=PLAINTEXT\n"
        "advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        "num.network.threads=3\nnum.io.threads=8\nsocket.send.buffer.bytes=102400\n"
        "socket.receive.buffer.bytes=102400\nsocket.request.max.bytes=104857600\n"
        "log.dirs=/tmp/kafka-logs\nnum.partitions=1\nnum.recovery.threads.per.data.dir=2\n"
        "offsets.topic.replication.factor=1\nshare.coordinator.state.topic.replication.factor=1\n"
        "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n"
        "log.retention.hours=168\nlog.segment.bytes=1073741824\nlog.retention.check.interval.ms=300000\n"
    )
    journal = Journal()
    settings = broker_settings(path, {}, journal, {})
    (line,) = journal.lines
    assert line[0] == "config_ignored"
    assert "num.io.threads" in str(line[1]["keys"])
    assert settings.pop("log.dirs") == "/tmp/kafka-logs"
    config = parse_broker_config(settings)
    assert config.log_retention_ms == 168 * 3_600_000
    (listener,) = chosen_listeners([], config, insecure=True)
    assert str(listener) == "PLAINTEXT://0.0.0.0:9092"


def test_the_environment_wins_over_the_file_and_loses_to_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=3\nfetch.max.bytes=2048\nmessage.max.bytes=3000\n")
    journal = Journal()
    environment = {
        "KAFKA_NUM_PARTITIONS": "4",
        "KAFKA_FETCH_MAX_BYTES": "4096",
        "KAFKA_OPTS": "-Xmx1g",
        "NUM_PARTITIONS": "9",
        "KAFKA_LOG_DIRS": "",
    }
    assert broker_settings(path, {"fetch.max.bytes": "8192"}, journal, environment) == {
        "num.partitions": "4",
        "fetch.max.bytes": "8192",
        "message.max.bytes": "3000",
    }
    assert journal.lines == [
        ("config_from_environment", {"keys": "fetch.max.bytes,num.partitions"})
    ]


@pytest.mark.parametrize(
    ("in_file", "given"),
    [
        ("log.retention.ms=5", {"log.retention.hours": "1"}),
        ("log.retention.minutes=5", {"log.retention.hours": "1"}),
        ("log.dirs=/a,/b", {"log.dir": "/c"}),
        ("node.id=1", {"broker.id": "2"}),
        ("broker.id=1", {"node.id": "2"}),
        ("listener.name.EXTERNAL.ssl.client.auth=none", {"listener.name.external.ssl.client.auth": "required"}),
    ],
)  # fmt: skip
def test_an_option_that_has_several_names_is_taken_from_one_place(
    tmp_path: Path, in_file: str, given: dict[str, str]
) -> None:
    """The command line would be passed over in silence where the file has the finer unit, and refused elsewhere."""
    path = tmp_path / "server.properties"
    path.write_text(f"num.partitions=3\n{in_file}\n")
    environment = {variable_of(name): text for name, text in given.items()}
    assert broker_settings(path, given, Journal(), {}) == {"num.partitions": "3", **given}
    assert broker_settings(path, {}, Journal(), environment) == {"num.partitions": "3", **given}


def test_a_variable_that_is_nearly_a_setting_is_named() -> None:
    journal = Journal()
    environment = {"KAFKA_NUM_PARTITONS": "4", "KAFKA_SSL_KEYSTORE_FILENAME": "kafka.jks"}
    assert broker_settings(None, {}, journal, environment) == {}
    assert [(event, fields["variable"]) for event, fields in journal.lines] == [
        ("environment_variable_ignored", "KAFKA_NUM_PARTITONS"),
        ("environment_variable_ignored", "KAFKA_SSL_KEYSTORE_FILENAME"),
    ]
    assert journal.lines[0][1]["remedy"] == "did you mean KAFKA_NUM_PARTITIONS?"


def test_an_option_of_kafka_that_would_be_missed_is_refused() -> None:
    given = {"create.topic.policy.class.name": "com.example.Policy"}
    with pytest.raises(ConfigError, match=r"create\.topic\.policy.*names a class of Java"):
        broker_settings(None, given, Journal(), {})


def test_listeners_come_from_flags_or_from_a_setting(
    tmp_path: Path, served: list[ServeOptions]
) -> None:
    path = tmp_path / "server.properties"
    path.write_text("listeners=INTERNAL://127.0.0.1:1,EXTERNAL://127.0.0.1:2\n"
                    "listener.security.protocol.map=INTERNAL:PLAINTEXT,EXTERNAL:SSL\n")  # fmt: skip
    serve()
    serve("--config-file", str(path))
    serve("--config-file", str(path), "--listen", "[::1]:3", "--listen", "external://localhost:4")
    assert [list(map(str, options.listeners)) for options in served] == [
        ["PLAINTEXT://127.0.0.1:9092"],
        ["INTERNAL://127.0.0.1:1", "EXTERNAL://127.0.0.1:2"],
        ["PLAINTEXT://[::1]:3", "EXTERNAL://localhost:4"],
    ]
    assert served[-1].config.listeners == "PLAINTEXT://[::1]:3,EXTERNAL://localhost:4"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config", "listeners="], "at least one listener"),
        (["--listen", "OTHER://a:1"], "listener.security.protocol.map"),
        (["--listen", "0.0.0.0:1"], "--insecure"),
        (["--config", "advertised.listeners=SSL://a:1"], "no listener SSL, but PLAINTEXT"),
        (["--config", "ssl.client.auht=required"], "did you mean"),
    ],
)
def test_a_wrong_listener_is_wrong_usage(
    arguments: list[str], said: str, served: list[ServeOptions]
) -> None:
    result = serve(*arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert not served


def test_a_toml_file_nested_or_flat(tmp_path: Path) -> None:
    path = tmp_path / "headrace.toml"
    path.write_text(
        '"log.retention.ms" = 5\n[num]\npartitions = 3\n[auto.create.topics]\nenable = false\n'
    )
    assert read_properties(path, Journal()) == {
        "log.retention.ms": "5",
        "num.partitions": "3",
        "auto.create.topics.enable": "false",
    }


@pytest.mark.parametrize(
    ("name", "content"), [("a.toml", "= 3"), ("a.properties", "just words"), ("b", "\xff")]
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=name):
        read_properties(path, Journal())


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServeOptions]:
    """Return the settings with which `serve` would have run; it ends at once."""
    runs: list[ServeOptions] = []

    def run(options: ServeOptions) -> int:
        runs.append(options)
        return 0

    monkeypatch.setattr(process, "run", run)
    return runs


def serve(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["serve", *arguments])


def test_log_directories_are_named_by_flags_or_by_a_setting(
    tmp_path: Path, served: list[ServeOptions]
) -> None:
    path = tmp_path / "server.properties"
    path.write_text("log.dirs=/a, /b\nlog.dir=/old\n")
    serve()
    serve("--data", "/c", "--data", "/d", "--config-file", str(path))
    serve("--config-file", str(path))
    serve("--config-file", str(path), "--config", "log.dirs=/e")
    data = [[str(directory) for directory in options.data] for options in served]
    assert data == [["headrace-data"], ["/c", "/d"], ["/a", "/b"], ["/e"]]
    assert served[2].config.log_dirs == "/a,/b"
    CliRunner().invoke(main, ["dev", "--config-file", str(path)])
    assert list(served[-1].data) == [], "development is in memory"


def test_a_setting_that_names_no_log_directory_is_refused(served: list[ServeOptions]) -> None:
    result = serve("--config", "log.dirs= , ")
    assert result.exit_code == 2
    assert "expected a directory" in result.output
    assert not served


def test_every_command_of_the_table_exists() -> None:
    for name in SUMMARIES:
        result = CliRunner().invoke(main, [name, "--help"])
        assert result.exit_code == 0, result.output


def test_help_imports_neither_server_nor_client() -> None:
    program = (
        "import sys; from headrace.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'asyncio', 'headrace.broker', 'headrace.clients', 'sqlite3', 'pyspark'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "serve" in result.stdout


def test_an_unknown_command_is_wrong_usage() -> None:
    result = CliRunner().invoke(main, ["nonsense"])
    assert result.exit_code == 2
