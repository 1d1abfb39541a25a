"""Every serde encodes and decodes values, refuses others, and is found by its name."""

from __future__ import annotations

import dataclasses
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.serdes.avro import AvroSerde, RegistryAvroSerde, SchemaRegistry
from headrace.serdes.serde import register_serde, resolve_serde


class Struct(msgspec.Struct):
    id: int
    name: str = "x"


@dataclasses.dataclass
class Data:
    id: int
    name: str = "x"


class Model(pydantic.BaseModel):
    id: int
    name: str = "x"


class Typed(TypedDict):
    id: int


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string", "default": "x"}],
}
REFUSALS = (TypeError, ValueError, msgspec.MsgspecError)
OLD_ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("bytes", b"\x00\xff"),
        ("str", "grüße"),
        ("json", {"a": [1, 2.5, None, True]}),
        (bytes, b"x"),
        (str, "x"),
        (Struct, Struct(7)),
        (Data, Data(7, "y")),
        (Model, Model(id=7)),
        (Typed, {"id": 3}),
        (dict, {"any": "thing"}),
        (AvroSerde(ORDER), {"id": 7, "name": "y"}),
        (AvroSerde(json.dumps(ORDER)), {"id": 7, "name": "y"}),
    ],
)
def test_values_survive_serialization_and_deserialization(given, value) -> None:
    serde = resolve_serde(given)
    data = serde.serialize(value)
    assert isinstance(data, bytes)
    assert serde.deserialize(data) == value


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), st.lists))
def test_the_json_serde_is_compatible_with_the_standard_library(value) -> None:
    serde = resolve_serde("json")
    assert json.loads(serde.serialize(value)) == value
    assert serde.deserialize(json.dumps(value).encode()) == value


def test_text_is_written_as_utf_8_where_bytes_are_wanted() -> None:
    assert resolve_serde("bytes").serialize("Zürich") == "Zürich".encode()


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("bytes", 7),
        ("bytes", "\ud800"),
        ("str", b"x"),
        ("json", object()),
        (AvroSerde(ORDER), {"id": "no"}),
    ],
)
def test_values_of_the_wrong_kind_are_refused(given, value) -> None:
    with pytest.raises(REFUSALS):
        resolve_serde(given).serialize(value)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("given", ["str", "json", Struct, Data, Model, Typed, AvroSerde(ORDER)])
def test_bytes_are_never_taken_for_a_value(given, kind) -> None:
    # They may be a value's JSON already, and would be stored as text in base64.
    with pytest.raises((*REFUSALS, AttributeError)):
        resolve_serde(given).serialize(kind(b'{"id": 1}'))


@pytest.mark.parametrize(
    ("given", "data"),
    [
        ("str", b"\xff"),
        ("json", b"{"),
        (Struct, b'{"id": "no"}'),
        (Data, b"{}"),
        (Model, b'{"id": "no"}'),
        (AvroSerde(ORDER), b"\x0e"),
        (AvroSerde(OLD_ORDER), AvroSerde(ORDER).serialize({"id": 1, "name": "more"})),
    ],
)
def test_bytes_that_are_no_value_are_refused(given, data) -> None:
    with pytest.raises(REFUSALS):
        resolve_serde(given).deserialize(data)


class Reversed:
    def serialize(self, value):
        return value.encode()[::-1]

    def deserialize(self, data):
        return data[::-1].decode()


def test_a_custom_serde_is_resolved_as_an_object_or_by_its_registered_name() -> None:
    own = Reversed()
    assert resolve_serde(own) is own
    register_serde("reversed", Reversed)
    assert resolve_serde("reversed").serialize("abc") == b"cba"


@pytest.mark.parametrize("wrong", ["pickle", "Json", 7])
def test_an_object_that_is_not_a_serde_is_refused(wrong) -> None:
    with pytest.raises(ConfigError, match="serde"):
        resolve_serde(wrong)


def test_a_schema_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="schema"):
        AvroSerde({"type": "nonsense"})
    with pytest.raises(ConfigError, match="schema"):
        AvroSerde("{")


class Registry(BaseHTTPRequestHandler):
    """A schema registry over real HTTP, with the requests that its clients use."""

    schemas: list[str]
    requests: list[str]

    def do_GET(self) -> None:
        self.requests.append(self.path)
        number = int(self.path.rpartition("/")[2])
        if number <= len(self.schemas):
            self._answer(200, {"schema": self.schemas[number - 1]})
        else:
            self._answer(404, {"error_code": 40403, "message": "Schema not found"})

    def do_POST(self) -> None:
        self.requests.append(self.path)
        schema = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"]
        if schema not in self.schemas:
            self.schemas.append(schema)
        self._answer(200, {"id": self.schemas.index(schema) + 1})

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry():
    handler = type("Handler", (Registry,), {"schemas": [], "requests": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_registry_names_the_schema_of_each_record(registry) -> None:
    url, handler = registry
    old = RegistryAvroSerde(SchemaRegistry(url), OLD_ORDER, subject="orders-value")
    new = RegistryAvroSerde(SchemaRegistry(url), ORDER, subject="orders-value")
    first, second = old.serialize({"id": 1}), new.serialize({"id": 2, "name": "y"})
    assert (first[:5], second[:5]) == (b"\0\0\0\0\1", b"\0\0\0\0\2")
    assert new.deserialize(first) == {"id": 1, "name": "x"}, "read into the reader's schema"
    assert RegistryAvroSerde(SchemaRegistry(url), None).deserialize(second) == {
        "id": 2,
        "name": "y",
    }
    count = len(handler.requests)
    new.serialize({"id": 3, "name": "z"})
    new.deserialize(first)
    assert len(handler.requests) == count, "the answers are remembered"


def test_errors_of_a_registry_and_its_settings_name_the_cause(registry) -> None:
    url, _ = registry
    reader = RegistryAvroSerde(SchemaRegistry(url), None)
    with pytest.raises(ConfigError, match="404"):
        reader.deserialize(b"\0\0\0\0\x63x")
    with pytest.raises(ValueError, match="zero byte"):
        reader.deserialize(b"{}")
    with pytest.raises(TypeError):
        reader.serialize({})
    with pytest.raises(ConfigError, match="does not answer"):
        SchemaRegistry("http://127.0.0.1:1").schema(1)
    with pytest.raises(ConfigError, match="http"):
        SchemaRegistry("file:///etc/passwd")
    with pytest.raises(ConfigError, match="subject"):
        RegistryAvroSerde(SchemaRegistry(url), ORDER)
