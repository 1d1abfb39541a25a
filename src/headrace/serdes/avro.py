"""Avro, plain or with a schema registry in Confluent's wire format: a zero byte, the schema's id in four, the data.

Needs the extra `headrace[avro]`, which brings fastavro.
"""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Mapping
from typing import Any, Final

from headrace.errors import ConfigError
from headrace.serdes.avro_bounds import Bounds

ALLOWED: Final = "HEADRACE_SCHEMA_REGISTRIES"
"""The variable of the environment that names the schema registries which topics may name."""
_PREFIX: Final = struct.Struct(">bI")
_MAGIC: Final = 0
_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_MAX_ANSWER_BYTES: Final = 4 << 20
DEFAULT_TIMEOUT_S: Final = 10.0
_MARKS: Final = frozenset({"__fastavro_parsed", "__named_schemas"})


def _fastavro() -> Any:
    try:
        import fastavro  # noqa: PLC0415 - an extra, and only for those who use Avro
    except ImportError:
        raise ConfigError("Avro needs fastavro: pip install 'headrace[avro]'") from None
    return fastavro


def _parse(schema: str | Mapping[str, Any]) -> Any:
    fastavro = _fastavro()
    try:
        return fastavro.parse_schema(_document(schema))
    except (
        TypeError,
        ValueError,
        KeyError,
        RecursionError,
        fastavro.schema.SchemaParseException,
    ) as error:
        raise ConfigError(f"the Avro schema cannot be used: {error!r}") from None


def _document(schema: str | Mapping[str, Any]) -> Any:
    return _unmarked(json.loads(schema) if isinstance(schema, str) else dict(schema))


def _unmarked(schema: Any) -> Any:
    """Return a schema without fastavro's marks that it was parsed before.

    fastavro believes these marks and checks nothing. A schema may come from a topic's metadata or a registry, where
    anybody could have written them, and `Bounds` relies on what fastavro has checked.
    """
    if isinstance(schema, Mapping):
        return {key: _unmarked(value) for key, value in schema.items() if key not in _MARKS}
    return [_unmarked(each) for each in schema] if isinstance(schema, list) else schema


class AvroSerde:
    """Avro with a schema that both sides have.

    A topic can keep the schema in its metadata: `create_topic(..., serde="avro", serde_parameters={"schema": {...}})`,
    or `create_topic(..., serde=AvroSerde(schema))`.
    """

    name: Final = "avro"

    def __init__(self, schema: str | Mapping[str, Any]) -> None:
        """Prepare a serde.

        Args:
            schema: The schema, as JSON or as what JSON describes.

        Raises:
            ConfigError: It is no schema, or fastavro is not installed.
        """
        self._schema = _parse(schema)
        self._bounds = Bounds(self._schema)
        self._fastavro = _fastavro()
        self.parameters: Mapping[str, Any] = {"schema": _document(schema)}
        """The parameters with which a topic stores this serde."""

    def serialize(self, value: Any) -> bytes:
        """Return the value in the schema."""
        output = io.BytesIO()
        self._fastavro.schemaless_writer(output, self._schema, value)
        return output.getvalue()

    def deserialize(self, data: bytes) -> Any:
        """Return the decoded value."""
        self._bounds.check(data)
        return _read_all(self._fastavro, data, self._schema, None)


def _read_all(fastavro: Any, data: bytes, written: Any, wanted: Any) -> Any:
    source = io.BytesIO(data)
    try:
        value = fastavro.schemaless_reader(source, written, wanted)
    except EOFError:
        raise ValueError("the data ends within the value") from None
    if rest := len(data) - source.tell():
        raise ValueError(f"{rest} bytes follow the value: it was written with another schema")
    return value


class SchemaRegistry:
    """A client of a schema registry with Confluent's HTTP interface. It caches all responses."""

    def __init__(self, url: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Prepare a client.

        Args:
            url: `http://` or `https://`, host and port.
            timeout_s: Seconds until a request is given up.

        Raises:
            ConfigError: It is no such address.
        """
        if str(url).partition("://")[0].lower() not in {"http", "https"}:
            raise ConfigError(f"a schema registry is at http:// or https://, not at {url!r}")
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._schemas: dict[int, tuple[Any, Bounds]] = {}
        self._ids: dict[tuple[str, str], int] = {}

    def schema(self, schema_id: int) -> tuple[Any, Bounds]:
        """Return the parsed schema of an id, and the bounds of its values.

        Raises:
            ConfigError: The registry does not have it, or does not answer.
        """
        if schema_id not in self._schemas:
            answer = self._ask(f"/schemas/ids/{schema_id}")
            parsed = _parse(str(answer["schema"]))
            self._schemas[schema_id] = parsed, Bounds(parsed)
        return self._schemas[schema_id]

    def register(self, subject: str, schema: str) -> int:
        """Return a schema's id, registering it under a subject unless it is there.

        Raises:
            ConfigError: The registry refuses it, as incompatible for example, or does not answer.
        """
        known = self._ids.get((subject, schema))
        if known is None:
            from urllib.parse import quote  # noqa: PLC0415 - not for those who have no registry

            path = f"/subjects/{quote(subject, safe='')}/versions"
            known = int(self._ask(path, {"schema": schema})["id"])
            self._ids[subject, schema] = known
        return known

    def _ask(self, path: str, body: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        import urllib.error  # noqa: PLC0415 - slow to load, and not for those who have no registry
        import urllib.request  # noqa: PLC0415 - slow to load, and not for those who have no registry

        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            self.url + path, data=data, headers={"Content-Type": _CONTENT_TYPE}
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:  # noqa: S310 - checked above
                answer = json.loads(response.read(_MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            text = error.read(1000).decode(errors="replace")
            raise ConfigError(f"the schema registry refuses {path}: {error.code} {text}") from None
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the schema registry at {self.url} does not answer: {error}"
            ) from None
        if not isinstance(answer, dict):
            raise ConfigError(f"the schema registry answers {path} with {type(answer).__name__}")
        return answer


class RegistryAvroSerde:
    """Avro whose schemas are in a registry: each record names the schema that it was written with."""

    name: Final = "avro-registry"

    def __init__(
        self, registry: SchemaRegistry, schema: str | Mapping[str, Any] | None, *, subject: str = ""
    ) -> None:
        """Prepare a serde.

        Args:
            registry: Where the schemas are.
            schema: What is written, and what records of other schemas are read into (Avro's schema resolution);
                None reads each record in its own schema, and writes nothing.
            subject: Under what the schema is registered: `<topic>-value` by custom.

        Raises:
            ConfigError: It is no schema, it has no subject, or fastavro is not installed.
        """
        self._fastavro = _fastavro()
        self._registry = registry
        self._subject = subject
        self.parameters: Mapping[str, Any] = {
            "url": registry.url,
            "schema": None if schema is None else _document(schema),
            "subject": subject,
        }
        """The parameters with which a topic stores this serde."""
        self._text = ""
        self._schema = None
        if schema is not None:
            self._text = schema if isinstance(schema, str) else json.dumps(schema)
            self._schema = _parse(self._text)
            if not subject:
                raise ConfigError("a schema is registered under a subject: subject='<topic>-value'")

    def serialize(self, value: Any) -> bytes:
        """Return the value behind the id of its schema."""
        if self._schema is None:
            raise TypeError("this serde has no schema to write with")
        output = io.BytesIO()
        schema_id = self._registry.register(self._subject, self._text)
        output.write(_PREFIX.pack(_MAGIC, schema_id))
        self._fastavro.schemaless_writer(output, self._schema, value)
        return output.getvalue()

    def deserialize(self, data: bytes) -> Any:
        """Return the value, read with the schema that it was written with."""
        if len(data) < _PREFIX.size or data[0] != _MAGIC:
            raise ValueError("the record does not begin with a zero byte and the id of its schema")
        _, schema_id = _PREFIX.unpack_from(data)
        written, bounds = self._registry.schema(schema_id)
        content = data[_PREFIX.size :]
        bounds.check(content)
        return _read_all(self._fastavro, content, written, self._schema)


def registry_serde(
    url: str, schema: str | Mapping[str, Any] | None = None, subject: str = ""
) -> RegistryAvroSerde:
    """Return the serde with the name `avro-registry`.

    A user who may change a topic's configs can choose the URL, so a program uses only the registries that its
    environment allows: `HEADRACE_SCHEMA_REGISTRIES`, URLs with commas between.

    Args:
        url: Where the schema registry is.
        schema: What is written, and what records of other schemas are read into; None reads only.
        subject: Under what the schema is registered.

    Raises:
        ConfigError: The environment does not allow the registry, or as `SchemaRegistry` and `RegistryAvroSerde`.
    """
    allowed = {each.strip().rstrip("/") for each in os.environ.get(ALLOWED, "").split(",")}
    if url.rstrip("/") not in allowed:
        raise ConfigError(
            f"the topic names the schema registry {url[:200]!r}, which this program is not allowed to ask: set "
            f"{ALLOWED} to its URL in the environment, or give the program serde=RegistryAvroSerde(...)"
        )
    return RegistryAvroSerde(SchemaRegistry(url), schema, subject=subject)
