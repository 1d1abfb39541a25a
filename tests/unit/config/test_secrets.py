"""References to secrets, and options whose values are never shown."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from headrace.config.broker import BROKER_OPTIONS
from headrace.config.options import option, options_of, parse, parse_value
from headrace.config.properties_file import parse_properties
from headrace.config.secrets import (
    SIZE_LIMIT,
    has_reference,
    is_secret,
    resolve_references,
    warn_of_secrets,
)
from headrace.errors import ConfigError

SECRET = "hunter2-and-more"


def resolve(value: str, **environment: str) -> str:
    warned: list[str] = []
    resolved = resolve_references({"ssl.key.password": value}, warned.append, environment)
    assert not warned
    return resolved["ssl.key.password"]


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "pw"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    return path


def test_the_four_forms(tmp_path: Path, secret_file: Path) -> None:
    entries = tmp_path / "some.properties"
    entries.write_text(f"a.b = {SECRET}\nother=x\n")
    entries.chmod(0o600)
    assert resolve("${env:PW}", PW=SECRET) == SECRET
    assert resolve(f"${{file:{secret_file}}}") == SECRET
    assert resolve(f"${{file:{entries}:a.b}}") == SECRET
    assert resolve(f"${{dir:{tmp_path}:pw}}") == SECRET


def test_a_value_may_contain_several_references() -> None:
    jaas = 'Module required username="${env:WHO}" password="${env:PW}";'
    assert resolve(jaas, WHO="alice", PW=SECRET) == (
        f'Module required username="alice" password="{SECRET}";'
    )


@pytest.mark.parametrize(
    "value", ["", "plain", "$1", "${nothing}", "$", "${", "a${b", "RULE:^(.*)$/$1/"]
)
def test_values_without_a_reference_are_unchanged(value: str) -> None:
    assert resolve(value) == value
    assert not has_reference(value)


def test_resolved_text_is_not_resolved_again() -> None:
    assert resolve("${env:A}", A="${env:B}", B="no") == "${env:B}"


def test_only_one_line_end_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "pw"
    for content, expected in ((" a \r\n", " a "), ("a\n\n", "a\n"), ("a", "a"), ("", "")):
        path.write_bytes(content.encode())
        path.chmod(0o600)
        assert resolve(f"${{file:{path}}}") == expected


@pytest.mark.parametrize(
    "reference",
    [
        "${env:NOT_SET}",
        "${file:/nowhere/at/all}",
        "${file:%/pw:no-such-key}",
        "${file:%}",
        "${file:%/large}",
        "${file:%/latin}",
        "${file:a\0b}",
        "${dir:%:}",
        "${dir:%}",
        "${dir:%:missing}",
        "${dir:%/sub:../pw}",
        "${dir:%:..}",
        "${dir:%:./pw}",
        "${vault:secret/x}",
        "${env:}",
    ],
)
def test_the_error_for_a_reference_does_not_contain_the_secret(
    tmp_path: Path, reference: str
) -> None:
    (tmp_path / "pw").write_text(f"key={SECRET}\n")
    (tmp_path / "large").write_bytes(b"x" * (SIZE_LIMIT + 1))
    (tmp_path / "latin").write_bytes(SECRET.encode() + b"\xff")
    (tmp_path / "sub").mkdir()
    reference = reference.replace("%", str(tmp_path))
    with pytest.raises(ConfigError) as raised:
        resolve_references({"ssl.key.password": reference}, lambda _: None, {"OTHER": SECRET})
    message = str(raised.value)
    assert "ssl.key.password" in message
    assert reference in message
    assert SECRET not in message


def test_a_file_that_every_user_can_read_causes_a_warning(secret_file: Path) -> None:
    warned: list[str] = []
    settings = {"ssl.key.password": f"${{file:{secret_file}}}"}
    resolve_references(settings, warned.append)
    assert warned == []
    secret_file.chmod(0o644)
    resolve_references(settings, warned.append)
    assert warned == [str(secret_file)]


def test_so_is_a_configuration_that_holds_a_secret_itself(secret_file: Path) -> None:
    warned: list[str] = []
    secret_file.chmod(0o644)
    warn_of_secrets(
        secret_file, {"ssl.key.password": "${env:X}", "num.partitions": "1"}, warned.append
    )
    assert warned == []
    warn_of_secrets(secret_file, {"listener.name.x.ssl.key.password": "x"}, warned.append)
    assert warned == [str(secret_file)]


def test_every_secret_option_is_known_by_its_name() -> None:
    secret = {name for name, described in BROKER_OPTIONS.items() if described.sensitive}
    assert secret == {name for name in BROKER_OPTIONS if is_secret(name)}
    assert is_secret("sasl.password")
    assert is_secret("sasl_jaas_config")
    assert not is_secret("sasl.username")


def _refuse(text: str) -> None:
    raise ConfigError(f"{text!r} will not do")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    plain: str = option("", "Anything.")
    my_secret: str = option("", "A secret.", sensitive=True, choices=("right",))
    checked: str = option("", "The same.", sensitive=True, check=_refuse)


def test_a_secret_is_in_no_repr() -> None:
    config = parse(Config, {"plain": "seen", "my.secret": "right"})
    assert config.my_secret == "right"
    assert "right" not in repr(config)
    assert "seen" in repr(config)


@pytest.mark.parametrize("name", ["my.secret", "checked"])
def test_an_error_does_not_quote_a_secret(name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_value(name, options_of(Config)[name], SECRET)
    assert SECRET not in str(raised.value)
    assert name in str(raised.value)
    assert raised.value.__suppress_context__


def test_a_properties_file_is_parsed_as_java_parses_one() -> None:
    text = (
        "# comment = x\n! other\n\n  a=1\nb : 2\nc=x\\\n   y\nd=\\u0041\\t\\\\n\\:\n"
        "e\\ f=g=h\ni=\nj=C\\:\\\\dir\\\\\nk=a\u2028b\n"
    )
    assert parse_properties(text, "file") == {
        "a": "1",
        "b": "2",
        "c": "xy",
        "d": "A\t\\n:",
        "e f": "g=h",
        "i": "",
        "j": "C:\\dir\\",
        "k": "a\u2028b",
    }


@pytest.mark.parametrize("text", ["a=1\n{} x\n", "a=1\n={}\n", "a=1\n{}\\"])
def test_a_line_that_cannot_be_read_is_numbered_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_properties(text.format(SECRET), "server.properties")
    assert str(raised.value) == "server.properties, line 2: expected key=value"
