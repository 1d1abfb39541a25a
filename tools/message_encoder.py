"""Generates the body of a method that encodes the flexible, or the other, versions of a message."""

from __future__ import annotations

from tools.message_emitter import (
    BodyGenerator,
    RunItem,
    condition,
    default_of,
    present,
    snake_case,
)
from tools.message_schema import (
    FIXED_CODES,
    FieldSchema,
    StructSchema,
    Versions,
)


class EncoderGenerator(BodyGenerator):
    """Writes an encoder.

    Fixed-width values collect in a run, together with an int16 or int32 length or an empty section of tagged fields
    that follows them, and are written by one precompiled Struct per set of fields that exists in some version.
    """

    taken = frozenset({"buffers", "n", "out", "self", "tags", "version"})

    _out = "out"
    """The variable that holds the bytes in the making."""

    def generate(self) -> None:
        """Write the whole body."""
        self._struct(self.message, "self", self.versions)
        self.lines.add("return out")

    def _struct(self, struct: StructSchema, source: str, body: Versions) -> None:
        for f in struct.fields:
            if f.tag is not None or not f.versions & body:
                continue
            if f.code is not None:
                self._run.append(RunItem(f.versions & body, f.code, f"{source}.{f.name}", ""))
                continue
            test = condition(f.versions, body)
            if test is None:
                self._variable(f, source, body)
                continue
            self._flush(body)
            with self.lines.block(f"if {test}:"):
                self._variable(f, source, f.versions & body)
        known = struct.tagged(body)
        if self.flexible and not known:
            self._flush(body, "x", "")
        else:
            self._flush(body)
        if known:
            self._tags(known, source, body)

    # -- runs ----------------------------------------------------------------------------------------------------

    def _flush(self, body: Versions, trailing: str = "", value: str = "") -> None:
        """Write the pending run, and after it `value` by the code `trailing`."""
        items, self._run = self._run, []
        if not items and not trailing:
            return
        groups = present(items, body)
        for index, (versions, existing) in enumerate(groups):
            codes = [item.code for item in existing] + ([trailing] if trailing else [])
            values = [item.expression for item in existing] + ([value] if value else [])
            if condition(versions, body) is None:
                self._write(codes, values)
            elif index == len(groups) - 1:
                if codes:
                    with self.lines.block("else:"):
                        self._write(codes, values)
            else:
                with self.lines.block(f"{'el' if index else ''}if version >= {versions.low}:"):
                    self._write(codes, values)

    def _write(self, codes: list[str], values: list[str]) -> None:
        if codes == ["x"]:
            self.lines.add(f"{self._out}.append(0)")
        elif codes:
            name = self.layouts.name("pack", codes)
            self.lines.add_list(f"{self._out} += {name}(", values, ")")
        else:
            self.lines.add("pass")

    # -- values of variable size ---------------------------------------------------------------------------------

    def _variable(self, f: FieldSchema, source: str, body: Versions) -> None:
        nullable = f.nullable & body
        optional = f.is_optional or f.type == "records"
        if not optional:
            self._value(f, f"{source}.{f.name}", body)
            return
        self._flush(body)
        value = self.unique(f.name)
        self.lines.add(f"{value} = {source}.{f.name}")
        with self.lines.block(f"if {value} is not None:"):
            self._value(f, value, body, bare=True)
        test = condition(nullable, body) if nullable else "never"
        if nullable:
            with self.lines.block(f"elif {test}:" if test else "else:"):
                self._null(f)
        if test:
            with self.lines.block("else:"):
                self.lines.add(f'fail_null("{f.name}")')

    def _null(self, f: FieldSchema) -> None:
        if f.struct is not None and not f.is_array:
            self.lines.add(f"{self._out}.append({255 if f.tag is None else 0})")
        elif self.flexible:
            self.lines.add(f"{self._out}.append(0)")
        else:
            self.lines.add(
                f"{self._out} += {'NULL_INT16' if f.type == 'string' and not f.is_array else 'NULL_INT32'}"
            )

    def _value(self, f: FieldSchema, source: str, body: Versions, *, bare: bool = False) -> None:
        """Write a value that is not null; `bare` when `source` is a local variable already."""
        if f.is_array:
            self._array(f, source, body)
        elif f.struct is not None:
            self._nested(f, source, body, bare=bare)
        elif f.type == "string":
            encoded = self.unique(f"{f.name}_bytes")
            self.lines.add(f"{encoded} = {source}.encode()")
            self._sized(encoded, body, "h")
            self.lines.add(f"{self._out} += {encoded}")
        else:
            self._sized(source, body, "i")
            self._content(f, source)

    def _content(self, f: FieldSchema, source: str) -> None:
        if f.type == "bytes":
            self.lines.add(f"{self._out} += {source}")
            return
        if self._out != "out":
            raise ValueError("records within a tagged field would have to be copied")
        with self.lines.block(f"if len({source}):"):
            self.lines.add("buffers.append(out)")
            self.lines.add(f"buffers.append({source})")
            self.lines.add("out = bytearray()")

    def _sized(self, source: str, body: Versions, code: str) -> None:
        """Write the run and the length of `source` after it."""
        if not self.flexible:
            self._flush(body, code, f"len({source})")
            return
        self._flush(body)
        self.lines.add(f"n = len({source}) + 1")
        with self.lines.block("if n < 128:"):
            self.lines.add(f"{self._out}.append(n)")
        with self.lines.block("else:"):
            self.lines.add(f"write_varint({self._out}, n)")

    def _nested(self, f: FieldSchema, source: str, body: Versions, *, bare: bool) -> None:
        assert f.struct is not None
        self._flush(body)
        if f.nullable & body:
            self.lines.add(f"{self._out}.append(1)")
        name = source
        if not bare:
            name = self.unique(snake_case(f.struct.name))
            self.lines.add(f"{name} = {source}")
        self._struct(f.struct, name, body)

    def _array(self, f: FieldSchema, source: str, body: Versions) -> None:
        code = FIXED_CODES.get(f.type)
        if code in {"b", "h", "i", "q"}:
            self._flush(body)
            prefix = "compact_" if self.flexible else ""
            call = (
                f"{prefix}int32_array({source})"
                if code == "i"
                else f'{prefix}number_array({source}, "{code}")'
            )
            self.lines.add(f"{self._out} += {call}")
            return
        self._sized(source, body, "i")
        element = self.unique(
            snake_case(f.struct.name) if f.struct is not None else f"{f.name}_item"
        )
        with self.lines.block(f"for {element} in {source}:"):
            if f.struct is not None:
                self._struct(f.struct, element, body)
            elif f.type == "uuid":
                self.lines.add(f"{self._out} += {element}")
            else:
                self._value(f.element(), element, body)

    # -- tagged fields -------------------------------------------------------------------------------------------

    def _tags(self, known: list[FieldSchema], source: str, body: Versions) -> None:
        """Write the tagged fields that differ from their defaults."""
        tests = [self._is_set(f, source, body) for f in known]
        self.lines.add("tags = 0")
        for test in tests:
            with self.lines.block(f"if {test}:"):
                self.lines.add("tags += 1")
        self.lines.add(f"{self._out}.append(tags)")
        outer = self._out
        with self.lines.block("if tags:"):
            for f, test in zip(known, tests, strict=True):
                with self.lines.block(f"if {test}:"):
                    self._out = self.unique("tagged")
                    self.lines.add(f"{self._out} = bytearray()")
                    self._tagged_value(f, source, f.versions & body)
                    self.lines.add(f"write_tag({outer}, {f.tag}, {self._out})")
                    self._out = outer

    def _tagged_value(self, f: FieldSchema, source: str, body: Versions) -> None:
        place = f"{source}.{f.name}"
        if f.code is not None:
            self._run.append(RunItem(body, f.code, place, ""))
        elif f.struct is not None and not f.is_array and f.nullable & body:
            self._variable(f, source, body)
        else:
            self._value(f, place, body)
        self._flush(body)

    def _is_set(self, f: FieldSchema, source: str, body: Versions) -> str:
        default, place = default_of(f), f"{source}.{f.name}"
        if f.struct is not None and not f.is_array and f.nullable:
            test = "True"  # Kafka takes one that is left out for an empty structure, not for null
        elif f.type == "bool":
            test = f"not {place}" if default == "True" else place
        else:
            test = {"None": f"{place} is not None", "[]": place}.get(
                default, f"{place} != {default}"
            )
        versions = condition(f.versions, body)
        return f"{versions} and {test}" if versions else test
