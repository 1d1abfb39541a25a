"""The URLs of lease stores."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.kinesis.client.settings import AwsSettings
from headrace.kinesis.leases.dynamodb import DynamoLeaseStore
from headrace.kinesis.leases.memory import MemoryLeaseStore
from headrace.kinesis.leases.opening import open_store, table_place
from headrace.kinesis.leases.sqlite import SqliteLeaseStore


def test_each_url_scheme_opens_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_store("memory://x"), MemoryLeaseStore)
    assert isinstance(open_store("dynamodb://headrace-leases"), DynamoLeaseStore)
    monkeypatch.setenv("HOME", "/homes/somebody")
    for text, path in {
        "sqlite:///leases.db": "leases.db",
        "sqlite:////var/lib/leases.db": "/var/lib/leases.db",
        "sqlite:///~/leases.db": "/homes/somebody/leases.db",
    }.items():
        store = open_store(text)
        assert isinstance(store, SqliteLeaseStore)
        assert store._path == Path(path)


def test_parameters_of_the_url_take_precedence() -> None:
    aws = AwsSettings(
        region="eu-central-1", profile="work", access_key_id="a", secret_access_key="b"
    )
    text = "dynamodb://leases?region=us-west-2&endpoint_url=http%3A%2F%2Fhost%3A1&create=false&timeout_ms=100"
    table, place, given = table_place(text, aws)
    assert (table, place.region, place.endpoint_url) == ("leases", "us-west-2", "http://host:1")
    assert (place.profile, place.access_key_id) == ("work", "a")
    assert given["create"] == "false"
    store = open_store(text, aws)
    assert isinstance(store, DynamoLeaseStore)
    assert (store._settings.create, store._timeout_ms) == (False, 100)


def test_the_url_sets_capacity_and_tags() -> None:
    store = open_store("dynamodb://leases?read_capacity=2&write_capacity=3&tag.team=a+b&tag.x=")
    assert isinstance(store, DynamoLeaseStore)
    assert (store._settings.read_capacity, store._settings.write_capacity) == (2, 3)
    assert store._settings.tags == {"team": "a b", "x": ""}
    assert store._settings.create
    store = open_store("dynamodb://leases", create=False)
    assert isinstance(store, DynamoLeaseStore)
    assert not store._settings.create


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("leases", "is not the URL of a lease store"),
        ("redis://leases", "is not the URL of a lease store"),
        ("sqlite://leases.db", "contains no file name: sqlite:///leases.db is relative"),
        ("sqlite:///", "contains no file name"),
        ("dynamodb://", "contains no table name"),
        ("dynamodb://a/b", "contains no table name"),
        ("dynamodb://ab", "3 to 255"),
        ("dynamodb://leases?region", "name=value"),
        (
            "dynamodb://leases?regoin=x",
            "the parameter 'regoin' is unknown. Use create, endpoint_url",
        ),
        ("dynamodb://leases?create=no", "true or false"),
        ("dynamodb://leases?read_capacity=0&write_capacity=1", "a whole number from 1 on"),
        ("dynamodb://leases?read_capacity=1", "go together"),
        ("dynamodb://leases?endpoint_url=host", "begins with http"),
    ],
)
def test_an_invalid_store_url_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_store(text)


def test_every_parameter_of_the_url_is_documented() -> None:
    page = (
        Path(__file__).resolve().parents[4] / "docs" / "reference" / "kinesis-leases.md"
    ).read_text()
    table = page.partition("| name | |")[2].partition("\n\n")[0]
    documented = set(
        re.findall(r"`([a-zA-Z_.]+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE)))
    )
    with pytest.raises(ConfigError) as caught:
        open_store("dynamodb://leases?unknown=1")
    known = str(caught.value).partition("is unknown. Use ")[2].split(", ")
    assert documented == set(known)
