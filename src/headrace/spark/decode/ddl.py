"""Parse and write Spark's DDL of types without Spark, whose own parser is in the JVM, out of reach of tasks.

The types are Arrow types as Spark derives them. The names of child fields matter, because Spark compares them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from headrace.errors import ConfigError

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ: Final = pa.timestamp("us")
MAX_PRECISION: Final = 38
_DEEPEST: Final = 64

_NAMES: Final[Mapping[str, Any]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
}
_ALIASES: Final = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
    "varchar": "string",
    "char": "string",
    "character": "string",
}
_TEXTS: Final = {kind: name for name, kind in _NAMES.items()}
_DECIMALS: Final = frozenset({"decimal", "dec", "numeric"})
_TOKEN: Final = re.compile(
    r"""\s*(?:(`(?:[^`]|``)*`)|('(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*")|(\w+)|([<>(),:]))""",
    re.DOTALL,
)


def struct_type(text: str) -> Any:
    """Parse a schema to an Arrow struct.

    A schema has the form `a INT, b STRING` or `struct<a:int>`, or is the result of `StructType.json()`. Columns are
    nullable even if the schema says otherwise, because a value may lack a field.

    Raises:
        ConfigError: The schema is malformed, or has types that values cannot have.
    """
    if text.lstrip().startswith("{"):
        found = _from_json(text)
    else:
        parser = _Parser(text)
        found = parser.whole()
    if not pa.types.is_struct(found) or not found.num_fields:
        raise ConfigError(
            f"option schema must name columns, like 'id BIGINT, name STRING', not {text!r}"
        )
    return found


def spark_type(kind: Any, *, quoted: bool) -> str:
    """Write an Arrow type as Spark writes types.

    Args:
        kind: The type.
        quoted: True writes DDL for a session's parser: names are quoted, and a timestamp has the same type for every
                    value of `spark.sql.timestampType`. False writes the text of `simpleString`.
    """
    if pa.types.is_struct(kind):
        fields = (
            f"{quote(field.name) if quoted else field.name}:{spark_type(field.type, quoted=quoted)}"
            for field in kind
        )
        return f"struct<{','.join(fields)}>"
    if pa.types.is_map(kind):
        key, item = (spark_type(each, quoted=quoted) for each in (kind.key_type, kind.item_type))
        return f"map<{key},{item}>"
    if pa.types.is_list(kind):
        return f"array<{spark_type(kind.value_type, quoted=quoted)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return "timestamp_ltz" if quoted and kind == TIMESTAMP else _TEXTS[kind]


def quote(name: str) -> str:
    """Quote a name for DDL with backquotes."""
    return "`" + name.replace("`", "``") + "`"


def array_of(element: Any) -> Any:
    """Return the Arrow type of Spark's arrays of an element type."""
    return pa.list_(pa.field("element", element))


def map_of(key: Any, item: Any) -> Any:
    """Return the Arrow type of Spark's maps of a key and a value type."""
    return pa.map_(pa.field("key", key, nullable=False), pa.field("value", item))


def struct_of(fields: Iterator[tuple[str, Any]] | list[tuple[str, Any]]) -> Any:
    """Return the Arrow type of Spark's structs of some fields.

    Raises:
        ConfigError: Two fields have the same name. Spark ignores case in names.
    """
    found = [pa.field(name, kind) for name, kind in fields]
    seen: dict[str, str] = {}
    for field in found:
        other = seen.get(field.name.lower())
        if other is not None:
            raise ConfigError(
                f"option schema names {other} and {field.name}, which are the same to Spark"
            )
        seen[field.name.lower()] = field.name
    return pa.struct(found)


def _simple(name: str, arguments: list[int]) -> Any:
    lower = name.lower()
    lower = _ALIASES.get(lower, lower)
    if lower in _DECIMALS:
        precision, scale = [*arguments, *(10, 0)[len(arguments) :]]
        if not 0 < precision <= MAX_PRECISION or not 0 <= scale <= precision:
            raise ConfigError(
                f"option schema has decimal({precision},{scale}): the precision is at most {MAX_PRECISION}, and the "
                "scale at most the precision"
            )
        return pa.decimal128(precision, scale)
    if lower not in _NAMES:
        raise ConfigError(
            f"option schema has the type {name!r}: known are {', '.join([*_NAMES, 'decimal'])}, array, map and struct"
        )
    return _NAMES[lower]


class _Parser:
    """A recursive descent parser of DDL."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._wrong(text[position:].split(maxsplit=1)[0])
            self._tokens.append(match[0].strip())
            position = match.end()
        self._at = 0
        self._depth = 0

    def whole(self) -> Any:
        if [each.lower() for each in self._tokens[:2]] == ["struct", "<"]:
            found = self._type()
        else:
            found = self._fields("")
        if self._at < len(self._tokens):
            raise self._wrong(self._peek())
        return found

    def _fields(self, end: str) -> Any:
        fields = []
        while self._peek() != end:
            name = self._next()
            if not name or name in "<>(),:" or name[0] in "'\"":
                raise self._wrong(name)
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            if self._peek() == ":":
                self._next()
            kind = self._type()
            self._skip_remarks()
            fields.append((name, kind))
            if self._peek() != ",":
                break
            self._next()
        return struct_of(fields)

    def _skip_remarks(self) -> None:
        if self._peek().lower() == "not":
            self._next()
            self._expect("null")
        if self._peek().lower() == "comment":
            self._next()
            self._next()

    def _type(self) -> Any:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ConfigError(f"option schema is nested more than {_DEEPEST} deep")
        name = self._next()
        if not name.isidentifier():
            raise self._wrong(name)
        match name.lower(), self._peek():
            case "array", "<":
                self._next()
                kind = array_of(self._type())
                self._expect(">")
            case "map", "<":
                self._next()
                key = self._type()
                self._expect(",")
                kind = map_of(key, self._type())
                self._expect(">")
            case "struct", "<":
                self._next()
                kind = self._fields(">")
                self._expect(">")
            case _:
                kind = _simple(name, self._arguments())
        self._depth -= 1
        return kind

    def _arguments(self) -> list[int]:
        found: list[int] = []
        if self._peek() == "(":
            while self._next() != ")" and len(found) < 2:
                number = self._next()
                if not number.isdecimal():
                    raise self._wrong(number)
                found.append(int(number))
                if self._peek() not in {",", ")"}:
                    raise self._wrong(self._peek())
        return found

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _expect(self, wanted: str) -> None:
        found = self._next()
        if found.lower() != wanted:
            raise self._wrong(found)

    def _wrong(self, token: str) -> ConfigError:
        where = f"at {token!r}" if token else "at its end"
        return ConfigError(
            f"option schema cannot be parsed {where}: it must be like 'id BIGINT, tags ARRAY<STRING>', "
            f"not {self._text!r}"
        )


def _from_json(text: str) -> Any:
    try:
        return _json_type(json.loads(text))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"option schema begins like JSON, but is no result of StructType.json(): {error!r}"
        ) from None


def _json_type(described: Any) -> Any:
    if isinstance(described, str):
        return _Parser(described)._type()  # noqa: SLF001 - names of types are the same in both
    match described["type"]:
        case "struct":
            return struct_of(
                [(each["name"], _json_type(each["type"])) for each in described["fields"]]
            )
        case "array":
            return array_of(_json_type(described["elementType"]))
        case "map":
            return map_of(_json_type(described["keyType"]), _json_type(described["valueType"]))
        case other:
            raise ValueError(f"the type {other!r} is not known")
