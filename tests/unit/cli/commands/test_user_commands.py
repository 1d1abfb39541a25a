"""`headrace user` on a data directory, and where passwords come from."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.broker.access.credentials import credential_key
from headrace.cli import main
from headrace.cli.commands.user_passwords import VARIABLE, ask_password
from headrace.core.cluster.records import ScramRecord, decode
from headrace.errors import ConfigError
from headrace.metadata_stores.sqlite import SqliteMetadataStore
from headrace.security.scram import ScramCredential, ScramMechanism
from headrace.server.data_directory import METADATA_FILE
from headrace.server.stores import open_stores
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.metadata_stores import stored

SHA_256, SHA_512 = ScramMechanism


class Data:
    """A data directory and the commands that work on it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *arguments: str, password: str = "", code: int = 0, **options):
        command = ("user", *arguments, "--data", str(self.path))
        result = CliRunner().invoke(main, command, env={VARIABLE: password}, **options)
        assert result.exit_code == code, result.output
        return result

    def users(self) -> dict[str, dict[str, int]]:
        found = json.loads(self.run("list", "--format", "json").stdout)
        return {
            user["user"]: {each["mechanism"]: each["iterations"] for each in user["credentials"]}
            for user in found
        }

    def credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        """Return the credential that a broker would find in the data directory."""
        store = SqliteMetadataStore(self.path / METADATA_FILE)
        try:
            entry = stored(store).get(credential_key(user, mechanism))
        finally:
            store.close()
        assert entry is not None
        record = decode(entry, ScramRecord)
        return ScramCredential(
            bytes.fromhex(record.salt),
            record.iterations,
            bytes.fromhex(record.stored_key),
            bytes.fromhex(record.server_key),
        )


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path / "data")


def test_create_stores_a_user_before_the_first_start(data: Data) -> None:
    assert "alice: created" in data.run("create", "alice", password="p").stderr
    assert data.users() == {"alice": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}}
    for mechanism in ScramMechanism:
        credential = data.credential("alice", mechanism)
        assert credential.is_password("p", mechanism)
        assert not credential.is_password("q", mechanism)
    assert b"password" not in (data.path / METADATA_FILE).read_bytes()


def test_a_broker_loads_users_that_were_created_before_its_first_start(data: Data) -> None:
    data.run("create", "alice", password="p")
    stores = open_stores([data.path])
    try:
        harness = BrokerHarness(metadata=stores.metadata)
        [(whose, _), _] = sorted(harness.broker.services.credentials)
        assert whose == ("alice", SHA_256)
    finally:
        stores.close()


def test_mechanism_and_iterations_are_chosen(data: Data) -> None:
    data.run("create", "bob", "-m", "scram-sha-512", "--iterations", "8192", password="p")
    assert data.users() == {"bob": {"SCRAM-SHA-512": 8192}}
    table = data.run("describe", "bob").stdout.splitlines()
    assert [line.split() for line in table] == [
        ["USER", "MECHANISM", "ITERATIONS"],
        ["bob", "SCRAM-SHA-512", "8192"],
    ]


def test_an_existing_user_is_not_created_again(data: Data) -> None:
    data.run("create", "alice", password="p")
    assert "set-password" in data.run("create", "alice", password="q", code=1).stderr
    assert data.credential("alice", SHA_256).is_password("p", SHA_256)


def test_another_password_voids_the_first_one_for_every_mechanism(data: Data) -> None:
    data.run("create", "alice", password="p")
    data.run("set-password", "alice", "-m", "SCRAM-SHA-256", password="q")
    assert list(data.users()["alice"]) == ["SCRAM-SHA-256"]
    assert data.credential("alice", SHA_256).is_password("q", SHA_256)


def test_the_password_of_a_missing_user_cannot_be_changed(data: Data) -> None:
    data.run("create", "alice", password="p")
    assert "user create" in data.run("set-password", "bob", password="q", code=1).stderr
    assert data.users().keys() == {"alice"}
    assert "no user 'bob'" in data.run("describe", "bob", code=1).stderr


def test_users_are_deleted_and_each_has_an_outcome(data: Data) -> None:
    for name in ("alice", "bob"):
        data.run("create", name, password="p")
    assert "--yes" in data.run("delete", "alice", code=2).stderr
    outcomes = data.run("delete", "alice", "carol", "-y", "--format", "json", code=1)
    assert [(each["user"], each["status"]) for each in json.loads(outcomes.stdout)] == [
        ("alice", "deleted"),
        ("carol", "failed"),
    ]
    assert data.users().keys() == {"bob"}


def test_a_name_may_have_any_character(data: Data) -> None:
    name = "CN=été/ü, O=\N{SNOWMAN}%2F"
    data.run("create", name, password="p")
    assert list(data.users()) == [name]


@pytest.mark.parametrize("name", ["", "x" * 500])
def test_a_name_that_cannot_be_stored_is_refused(data: Data, name: str) -> None:
    assert "1 to 450 characters" in data.run("create", name, password="p", code=1).stderr
    assert data.users() == {}


def test_a_broker_that_runs_is_to_be_asked(data: Data) -> None:
    stores = open_stores([data.path])
    try:
        told = data.run("create", "alice", password="p", code=1).stderr
    finally:
        stores.close()
    assert "a broker is running on" in told
    assert "-b HOST:PORT" in told


@pytest.mark.parametrize(
    "arguments", [("list",), ("describe", "a"), ("set-password", "a"), ("delete", "a", "-y")]
)
def test_only_create_makes_a_directory(data: Data, arguments: tuple[str, ...]) -> None:
    assert METADATA_FILE in data.run(*arguments, password="p", code=2).stderr
    assert not data.path.exists()


def test_a_further_directory_of_a_broker_has_no_users(data: Data) -> None:
    data.path.mkdir()
    (data.path / "meta.properties").write_text("version=1\n")
    told = data.run("create", "alice", password="p", code=2).stderr
    assert "not the first data directory" in told
    assert not (data.path / METADATA_FILE).exists()


def test_a_password_is_no_argument(data: Data) -> None:
    data.run("create", "alice", "--password", "p", code=2)
    data.run("create", "alice", "p", code=2)
    assert not data.path.exists()


def test_a_password_is_piped_in(data: Data) -> None:
    data.run("create", "alice", input="with spaces \n")
    assert data.credential("alice", SHA_512).is_password("with spaces ", SHA_512)


def test_a_file_is_before_the_environment(data: Data, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("of the file\r\n")
    file.chmod(0o600)
    result = data.run(
        "create", "alice", "--password-file", str(file), password="of the environment"
    )
    assert "Warning" not in result.stderr
    assert data.credential("alice", SHA_256).is_password("of the file", SHA_256)


def test_a_file_that_everybody_may_read_is_warned_of(data: Data, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("p")
    file.chmod(0o644)
    assert "chmod o-r" in data.run("create", "alice", "--password-file", str(file)).stderr


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "no password in"),
        (b"\n", "no password in"),
        (b"a\nb\n", "one line"),
        (b"\xff", "UTF-8"),
        (b"p" * 5000, "more than 4096 bytes"),
    ],
)
def test_an_invalid_password_is_reported(data: Data, content: bytes, text: str) -> None:
    told = data.run("create", "alice", input=content, code=2).stderr
    assert text in told
    assert data.users() == {}


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        ask_password("alice", tmp_path / "missing")


def test_a_terminal_is_asked_twice_and_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return "hunter2"

    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.termui.hidden_prompt_func", answer)
    assert ask_password("alice", None) == "hunter2"
    assert len(asked) == 2


def test_a_password_that_clients_would_not_agree_on_is_refused(data: Data) -> None:
    told = data.run("create", "alice", password="\N{LATIN SMALL LIGATURE FI}", code=1).stderr
    assert "some clients replace" in told


def schema_version(data: Data) -> int:
    connection = sqlite3.connect(data.path / METADATA_FILE)
    try:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()


@pytest.fixture
def old(data: Data) -> Data:
    """Return a data directory with a user, in the schema of an earlier version."""
    data.run("create", "alice", password="p")
    connection = sqlite3.connect(data.path / METADATA_FILE)
    connection.execute("DROP TABLE changes")
    connection.execute("ALTER TABLE entries DROP COLUMN ephemeral")
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    return data


def test_a_list_does_not_upgrade_the_data_directory_of_an_earlier_version(old: Data) -> None:
    assert list(old.users()) == ["alice"]
    assert schema_version(old) == 1


def test_a_change_upgrades_the_data_directory_of_an_earlier_version_and_says_so(old: Data) -> None:
    changed = old.run("set-password", "alice", password="other")
    assert "earlier versions of Headrace cannot read it" in changed.stderr
    assert schema_version(old) == 2
    assert list(old.users()) == ["alice"]
    assert "upgraded" not in old.run("set-password", "alice", password="third").stderr


def test_a_list_writes_no_entry(data: Data) -> None:
    def entries() -> object:
        store = SqliteMetadataStore(data.path / METADATA_FILE, upgrades=False)
        try:
            return store.entries()
        finally:
            store.close()

    data.run("create", "alice", password="p")
    before = entries()
    data.run("list")
    assert entries() == before
