"""Write `src/headrace/protocol/messages` from `tools/schemas`; `--check` only compares.

One module per schema, one class per struct for all versions of its message. The decoders and encoders come from
`message_decoder` and `message_encoder`; this file writes what is around them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that it runs as a script, too

from tools.message_decoder import DecoderGenerator
from tools.message_emitter import BodyGenerator, Layouts, Lines, default_of, python_type
from tools.message_encoder import EncoderGenerator
from tools.message_schema import FOREVER, MessageSchema, StructSchema, Versions, parse_schema

SCHEMAS = ROOT / "tools" / "schemas"
MESSAGES = ROOT / "src" / "headrace" / "protocol" / "messages"
TITLES = {"request": "Request", "response": "Response", "data": "Stored or embedded data"}
ENCODE = "(self, out: bytearray, buffers: list[Payload], version: int) -> bytearray:"
DECODE = "(cls, view: memoryview, position: int, version: int, room: int) -> tuple[Self, int]:"
CHANGES_OF_SETTINGS = {
    "AlterClientQuotasRequest",
    "AlterConfigsRequest",
    "IncrementalAlterConfigsRequest",
}
MODULE_NAMES = {
    "headrace.protocol.codec": [
        *(
            "NEVER_FLEXIBLE",
            "NULL_INT16",
            "NULL_INT32",
            "REQUEST_ELEMENTS",
            "SETTINGS_ELEMENTS",
            "UNSET",
            "ZERO_UUID",
            "Message",
            "Structure",
            "check_tag",
        ),
        *(
            "compact_int32_array",
            "compact_number_array",
            "count_tags",
            "fail_count",
            "fail_null",
            "int32_array",
            "length_tail",
        ),
        *(
            "number_array",
            "read_int32s",
            "read_numbers",
            "read_tag",
            "skip_tags",
            "string_length_tail",
            "string_tail",
            "varint_tail",
            "write_tag",
        ),
        "write_varint",
    ],
    "headrace.types": ["Buffer", "Payload"],
}


def class_head(lines: Lines, struct: StructSchema, base: str, doc: str) -> None:
    """Write a class up to and including its `__init__`."""
    lines.add(f"class {struct.name}({base}):")
    with lines.indented():
        lines.add(f'"""{doc}"""')
        lines.add()
        names = [f'"{f.name}"' for f in struct.fields]
        lines.add_list("__slots__ = (", names, ",)" if len(names) == 1 else ")")
        lines.add()
        if isinstance(struct, MessageSchema):
            flexible = (
                "NEVER_FLEXIBLE" if struct.first_flexible == FOREVER else struct.first_flexible
            )
            lines.add(f"API_KEY = {struct.api_key}")
            lines.add(f"MIN_VERSION = {struct.versions.low}")
            lines.add(f"MAX_VERSION = {struct.versions.high}")
            lines.add(f"FLEXIBLE_VERSION = {flexible}")
            if struct.kind == "request":
                few = struct.name in CHANGES_OF_SETTINGS
                lines.add(f"MAX_ELEMENTS = {'SETTINGS' if few else 'REQUEST'}_ELEMENTS")
            lines.add()
        for f in struct.fields:
            lines.add(f"{f.name}: {python_type(f)}")
        if struct.fields:
            lines.add()
            initializer(lines, struct)


def initializer(lines: Lines, struct: StructSchema) -> None:
    """Write `__init__`: keyword arguments with Kafka's defaults."""
    arguments, assignments = [], []
    for f in struct.fields:
        default = default_of(f)
        fresh = default == "[]" or default.endswith("()")
        arguments.append(f"{f.name}: {python_type(f)} = {'UNSET' if fresh else default}")
        value = f"{default} if {f.name} is UNSET else {f.name}" if fresh else f.name
        assignments.append(f"self.{f.name} = {value}")
    lines.add_list("def __init__(", ["self", "*", *arguments], ") -> None:")
    with lines.indented():
        for assignment in assignments:
            lines.add(assignment)


def methods(lines: Lines, layouts: Layouts, message: MessageSchema) -> None:
    """Write the encoders and decoders: one of each for flexible versions, one for those before, where there are any."""
    valid = message.versions
    plain = valid & Versions(0, message.first_flexible - 1)
    flexible = valid & Versions(message.first_flexible, FOREVER)
    kinds: list[tuple[str, str, type[BodyGenerator], str]] = [
        ("_encode", ENCODE, EncoderGenerator, ""),
        ("_decode", DECODE, DecoderGenerator, "@classmethod"),
    ]
    for name, signature, generator, decorator in kinds:
        for suffix, versions in (("_flexible", flexible), ("_plain", plain)):
            if not versions:
                continue
            lines.add()
            if decorator:
                lines.add(decorator)
            with lines.block(f"def {name}{suffix}{signature}"):
                generator(lines, layouts, message, versions).generate()


def module_source(schema: Path) -> str:
    """Return the module of one schema file."""
    messages = parse_schema(schema)
    lines, layouts = Lines(), Layouts()
    public: list[str] = []
    for message in messages:
        for struct in message.structs():
            public.append(struct.name)
            lines.add()
            lines.add()
            if struct is message:
                versions = f"versions {message.versions.low} to {message.versions.high}"
                class_head(
                    lines, struct, "Message", f"{TITLES[message.kind]} {message.name}, {versions}."
                )
                with lines.indented():
                    methods(lines, layouts, message)
            else:
                class_head(lines, struct, "Structure", f"Part of {message.name}.")
    body = "\n".join(lines.lines)
    head = [
        f'"""Kafka\'s {" and ".join(message.name for message in messages)}.',
        "",
        f"Generated by tools/generate_messages.py from tools/schemas/{schema.name}: change those, not this.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        *imports(body, layouts),
        "",
        "__all__ = [",
        *(f'    "{name}",' for name in sorted(public)),
        "]",
        *(["", *layouts.definitions()] if layouts.definitions() else []),
    ]
    return "\n".join(head) + "\n" + body + "\n"


def imports(body: str, layouts: Layouts) -> list[str]:
    """Return the import statements for what `body` uses."""
    lines = ["from struct import Struct"] if layouts.definitions() else []
    lines += ["from typing import Self", ""]
    for module, names in MODULE_NAMES.items():
        used = sorted(name for name in names if re.search(rf"\b{name}\b", body))
        lines += [f"from {module} import (", *(f"    {name}," for name in used), ")"]
    return lines


def registry_source(schemas: list[Path]) -> str:
    """Return the package's `__init__`: which module and classes belong to an API key."""
    rows = {}
    for path in schemas:
        request, response = parse_schema(path)
        if request.kind == "request":
            rows[request.api_key] = (
                f'    {request.api_key}: ("{path.stem}", "{request.name}", "{response.name}"),'
            )
    return "\n".join(
        [
            '"""One module per API, one class per message and struct, for all versions.',
            "",
            "Generated by tools/generate_messages.py from tools/schemas: change those, not this.",
            '"""',
            "",
            "from __future__ import annotations",
            "",
            "from typing import Final",
            "",
            "API_MODULES: Final = {",
            *(rows[key] for key in sorted(rows)),
            "}",
            '"""API key -> name of the module here, of the request class, of the response class."""',
            "",
        ]
    )


def main(arguments: list[str]) -> int:
    """Write the modules, or with `--check` return 1 if one differs from what would be written."""
    schemas = sorted(SCHEMAS.glob("*.txt"))
    sources = {"__init__.py": registry_source(schemas)}
    sources |= {f"{path.stem}.py": module_source(path) for path in schemas}
    MESSAGES.mkdir(exist_ok=True)
    existing = {path.name: path.read_text() for path in MESSAGES.glob("*.py")}
    stale = sorted(
        name for name in sources.keys() | existing.keys() if sources.get(name) != existing.get(name)
    )
    if "--check" in arguments:
        for name in stale:
            print(
                f"{MESSAGES / name} is not what tools/generate_messages.py writes", file=sys.stderr
            )
        return 1 if stale else 0
    for name in stale:
        if name in sources:
            (MESSAGES / name).write_text(sources[name])
        else:
            (MESSAGES / name).unlink()
    print(f"{len(sources)} modules, {len(stale)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
