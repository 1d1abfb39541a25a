"""Avro, plain or with a schema registry in Confluent's wire format: a zero byte, four bytes of schema id, the data.

It needs the extra `headrace[avro]`, which installs fastavro.
"""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Mapping
from typing import Any, Final

from headrace.errors import ConfigError
from headrace.serdes.avro_bounds import AvroBounds

ALLOWED: Final = "HEADRACE_SCHEMA_REGISTRIES"
"""The environment variable with the schema registries that topics may name."""
_PREFIX: Final = struct.Struct(">bI")
_MAGIC: Final = 0
_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_MAX_ANSWER_BYTES: Final = 4 << 20
DEFAULT_TIMEOUT_S: Final = 10.0
_MARKS: Final = frozenset({"__fastavro_parsed", "__named_schemas"})


def _fastavro() -> Any:
    try:
        import fastavro  # noqa: PLC0415 - an extra, which only programs with Avro install
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
    """Return a schema without the marks with which fastavro notes that it has parsed a schema.

    fastavro does not check a schema with these marks. A schema may come from a topic's configuration or from a
    registry, where any user could have added them, and `AvroBounds` relies on the checks of fastavro.
    """
    if isinstance(schema, Mapping):
        return {key: _unmarked(value) for key, value in schema.items() if key not in _MARKS}
    return [_unmarked(each) for each in schema] if isinstance(schema, list) else schema


class AvroSerde:
    """Avro with a schema that both sides know.

    A topic can store the schema: `create_topic(..., serde="avro", serde_parameters={"schema": {...}})`, or
    `create_topic(..., serde=AvroSerde(schema))`.
    """

    name: Final = "avro"

    def __init__(self, schema: str | Mapping[str, Any]) -> None:
        """Prepare a serde.

        Args:
            schema: The schema, as JSON text or as a dictionary.

        Raises:
            ConfigError: The schema is not valid, or fastavro is not installed.
        """
        self._schema = _parse(schema)
        self._bounds = AvroBounds(self._schema)
        self._fastavro = _fastavro()
        self.parameters: Mapping[str, Any] = {"schema": _document(schema)}
        """The parameters with which a topic stores this serde."""

    def serialize(self, value: Any) -> bytes:
        """Return the value, encoded with the schema."""
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
            ConfigError: The URL has another scheme.
        """
        if str(url).partition("://")[0].lower() not in {"http", "https"}:
            raise ConfigError(f"a schema registry is at http:// or https://, not at {url!r}")
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._schemas: dict[int, tuple[Any, AvroBounds]] = {}
        self._ids: dict[tuple[str, str], int] = {}

    def schema(self, schema_id: int) -> tuple[Any, AvroBounds]:
        """Return the parsed schema with an id, and the bounds of its values.

        Raises:
            ConfigError: The registry does not have the schema, or does not answer.
        """
        if schema_id not in self._schemas:
            answer = self._ask(f"/schemas/ids/{schema_id}")
            parsed = _parse(str(answer["schema"]))
            self._schemas[schema_id] = parsed, AvroBounds(parsed)
        return self._schemas[schema_id]

    def register(self, subject: str, schema: str) -> int:
        """Return the id of a schema; register the schema under a subject if it is new.

        Raises:
            ConfigError: The registry refuses the schema, for example as incompatible, or does not answer.
        """
        known = self._ids.get((subject, schema))
        if known is None:
            from urllib.parse import quote  # noqa: PLC0415 - only programs with a registry need it

            path = f"/subjects/{quote(subject, safe='')}/versions"
            known = int(self._ask(path, {"schema": schema})["id"])
            self._ids[subject, schema] = known
        return known

    def _ask(self, path: str, body: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        import urllib.error  # noqa: PLC0415 - slow to import, and only programs with a registry need it
        import urllib.request  # noqa: PLC0415 - slow to import, and only programs with a registry need it

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
    """Avro with schemas in a registry. Each record contains the id of the schema with which it was written."""

    name: Final = "avro-registry"

    def __init__(
        self, registry: SchemaRegistry, schema: str | Mapping[str, Any] | None, *, subject: str = ""
    ) -> None:
        """Prepare a serde.

        Args:
            registry: The registry.
            schema: The schema for writing. Records of other schemas are converted to it when they are read (Avro's
                schema resolution). None reads each record in its own schema, and cannot write.
            subject: The subject under which the schema is registered; by convention `<topic>-value`.

        Raises:
            ConfigError: The schema is not valid, it has no subject, or fastavro is not installed.
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
                raise ConfigError(
                    "a schema needs a subject to be registered: subject='<topic>-value'"
                )

    def serialize(self, value: Any) -> bytes:
        """Return the id of the schema, followed by the encoded value."""
        if self._schema is None:
            raise TypeError("this serde has no schema to write with")
        output = io.BytesIO()
        schema_id = self._registry.register(self._subject, self._text)
        output.write(_PREFIX.pack(_MAGIC, schema_id))
        self._fastavro.schemaless_writer(output, self._schema, value)
        return output.getvalue()

    def deserialize(self, data: bytes) -> Any:
        """Return the value, decoded with the schema with which it was written."""
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

    A user who may change a topic's configuration can choose the URL. Therefore a program uses only the registries that
    its environment allows: `HEADRACE_SCHEMA_REGISTRIES`, URLs separated by commas.

    Args:
        url: The URL of the schema registry.
        schema: See `RegistryAvroSerde`.
        subject: See `RegistryAvroSerde`.

    Raises:
        ConfigError: The environment does not allow the registry; or see `SchemaRegistry` and `RegistryAvroSerde`.
    """
    allowed = {each.strip().rstrip("/") for each in os.environ.get(ALLOWED, "").split(",")}
    if url.rstrip("/") not in allowed:
        raise ConfigError(
            f"the topic names the schema registry {url[:200]!r}, which this program is not allowed to use: set the "
            f"environment variable {ALLOWED} to its URL, or pass serde=RegistryAvroSerde(...) in the program"
        )
    return RegistryAvroSerde(SchemaRegistry(url), schema, subject=subject)
