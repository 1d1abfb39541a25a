"""Generates the body of a method that decodes the flexible, or the other, versions of a message."""

from __future__ import annotations

from collections.abc import Callable

from tools.message_emitter import (
    BodyGenerator,
    RunItem,
    condition,
    default_of,
    present,
    python_type,
    size_of,
    snake_case,
)
from tools.message_schema import (
    FIXED_CODES,
    FieldSchema,
    StructSchema,
    Versions,
    smallest_value,
)

Store = Callable[[str], str]
"""Turns the source of a value into the statement that stores it."""
Reader = Callable[[FieldSchema, Store, Versions], None]


class DecoderGenerator(BodyGenerator):
    """Writes a decoder.

    Fixed-width values collect in a run, together with the first byte(s) of a length that follows them, and are read
    by one precompiled Struct per set of fields that exists in some version.
    """

    taken = frozenset({"cls", "end", "left", "message", "n", "position", "stop", "version", "view"})

    def generate(self) -> None:
        """Write the whole body."""
        add = self.lines.add
        start = len(self.lines.lines)
        add("message = cls.__new__(cls)")
        self._struct(self.message, "message", self.versions)
        add("return message, position")
        body = "\n".join(self.lines.lines[start:])
        if " end " in body or " end:" in body:
            self.lines.lines.insert(start, "    " * self.lines.depth + "end = len(view)")

    def _struct(self, struct: StructSchema, target: str, body: Versions) -> None:
        """Read all fields of a struct into `target`, which exists and is empty."""
        for f in struct.fields:
            if not f.versions & body:
                self.lines.add(f"{target}.{f.name} = {default_of(f)}")
        for f in struct.fields:
            if f.tag is not None or not f.versions & body:
                continue
            if f.code is not None:
                self._run.append(
                    RunItem(f.versions & body, f.code, f"{target}.{f.name}", default_of(f))
                )
            else:
                self._variable(f, target, body)
        if self.flexible:
            self._tags(struct, target, body)
        else:
            self._flush(body)

    # -- runs ----------------------------------------------------------------------------------------------------

    def _flush(self, body: Versions, trailing: str | None = None) -> None:
        """Read the pending run, and with it a value of code `trailing` into `n`."""
        items, self._run = self._run, []
        groups = present(items, body)
        for index, (versions, existing) in enumerate(groups):
            test = condition(versions, body)
            if test is None:
                self._read(items, existing, trailing)
                continue
            if index == len(groups) - 1:
                head = "else:"
            else:
                head = f"{'el' if index else ''}if version >= {versions.low}:"
            with self.lines.block(head):
                self._read(items, existing, trailing)

    def _read(self, items: list[RunItem], existing: list[RunItem], trailing: str | None) -> None:
        for item in items:
            if item not in existing:
                self.lines.add(f"{item.expression} = {item.default}")
        codes = [item.code for item in existing] + ([trailing] if trailing else [])
        targets = [item.expression for item in existing] + (["n"] if trailing else [])
        if codes == ["B"]:
            self.lines.add("n = view[position]")
        elif codes:
            name = self.layouts.name("unpack_from", codes)
            call = f"{name}(view, position)"
            if len(targets) == 1:
                self.lines.add(f"({targets[0]},) = {call}")
            else:
                line = f"{', '.join(targets)} = {call}"
                if len(line) + 4 * self.lines.depth <= 100:
                    self.lines.add(line)
                else:
                    self.lines.add_list("(", targets, f") = {call}")
        if codes:
            self.lines.add(f"position += {size_of(codes)}")

    # -- values of variable size ---------------------------------------------------------------------------------

    def _variable(self, f: FieldSchema, target: str, body: Versions) -> None:
        test = condition(f.versions, body)
        inner = f.versions & body
        store = f"{target}.{f.name} = {{}}".format
        if test is None:
            self._length(f, body)
            self._value(f, store, inner)
            return
        self._flush(body)
        with self.lines.block(f"if {test}:"):
            self._length(f, inner)
            self._value(f, store, inner)
        with self.lines.block("else:"):
            self.lines.add(store(default_of(f)))

    def _length(self, f: FieldSchema, body: Versions, *, element: bool = False) -> None:
        """Read the run before a value, and the value's length or count into `n` as far as it is in one piece."""
        if f.struct is not None and (element or not f.is_array):
            self._flush(body, "b" if f.nullable & body and not element else None)
        elif self.flexible:
            self._flush(body, "B")
        else:
            is_string = f.type == "string" and (element or not f.is_array)
            self._flush(body, "h" if is_string else "i")

    def _value(self, f: FieldSchema, store: Store, body: Versions) -> None:
        """Read a value whose length is in `n`."""
        if f.struct is not None and not f.is_array:
            self._nested(f, store, body)
            return
        read = self._array if f.is_array else self._bytes
        if f.nullable & body:
            self._nullable(f, store, body, read)
            return
        if self.flexible:
            with self.lines.block("if not 0 < n < 128:"):
                tail = "string_length_tail" if self._is_string(f) else "length_tail"
                self.lines.add(f'n, position = {tail}(view, position, n, "{f.name}")')
        elif not f.is_array:
            with self.lines.block("if n < 0:"):
                self.lines.add(f'fail_null("{f.name}")')
        read(f, store, body)

    @staticmethod
    def _is_string(f: FieldSchema) -> bool:
        return f.type == "string" and not f.is_array

    def _nullable(self, f: FieldSchema, store: Store, body: Versions, read: Reader) -> None:
        nullable = f.nullable & body
        test = condition(nullable, body)
        if self.flexible:
            with self.lines.block("if n > 127:"):
                if self._is_string(f):
                    self.lines.add(f'n, position = string_tail(view, position, n, "{f.name}")')
                else:
                    self.lines.add("n, position = varint_tail(view, position, n)")
        with self.lines.block("if n:" if self.flexible else "if n >= 0:"):
            read(f, store, body)
        tests = ([] if self.flexible else ["n == -1"]) + ([test] if test else [])
        with self.lines.block(f"elif {' and '.join(tests)}:" if tests else "else:"):
            self.lines.add(store("None"))
        if tests:
            with self.lines.block("else:"):
                self.lines.add(f'fail_null("{f.name}")')

    def _bytes(self, f: FieldSchema, store: Store, _body: Versions) -> None:
        """Read `n` bytes (flexible: `n - 1`) as a string, bytes or records."""
        self.lines.add("stop = position + n - 1" if self.flexible else "stop = position + n")
        slice_ = "view[position:stop]"
        value = {
            "string": f'str({slice_}, "utf-8")',
            "bytes": f"bytes({slice_})",
            "records": slice_,
        }[f.type]
        self.lines.add(store(value))
        self.lines.add("position = stop")

    def _nested(self, f: FieldSchema, store: Store, body: Versions) -> None:
        assert f.struct is not None
        if not f.nullable & body:
            self.lines.add(store(self._new(f.struct, body)))
            return
        # A tagged field that is null, and not so by being left out, has 0 in front; elsewhere it is -1.
        with self.lines.block("if n < 0:" if f.tag is None else "if n < 1:"):
            self.lines.add(store("None"))
        with self.lines.block("else:"):
            self.lines.add(store(self._new(f.struct, body)))

    def _new(self, struct: StructSchema, body: Versions) -> str:
        name = self.unique(snake_case(struct.name))
        self.lines.add(f"{name} = {struct.name}.__new__({struct.name})")
        self._struct(struct, name, body)
        return name

    # -- arrays --------------------------------------------------------------------------------------------------

    def _array(self, f: FieldSchema, store: Store, body: Versions) -> None:
        """Read an array of `n` elements (flexible: `n - 1`), once they are known to fit."""
        versions = range(body.low, body.high + 1)
        least = min(smallest_value(f, v, flexible=self.flexible, element=True) for v in versions)
        if least < 1:
            raise ValueError(
                f"elements of {f.name} may take no bytes: the count would be unbounded"
            )
        if self.flexible:
            self.lines.add("n -= 1")
        self.lines.add("left -= n")
        size = "n" if least == 1 else f"n * {least}"
        # An int32 count may be negative; after a varint it cannot be.
        test = (
            f"if {size} > end - position or left < 0:"
            if self.flexible
            else f"if not 0 <= {size} <= end - position or left < 0:"
        )
        with self.lines.block(test):
            self.lines.add(f'fail_count(n, "{f.name}", left)')
        code = FIXED_CODES.get(f.type)
        if code in {"b", "h", "i", "q"}:
            read = (
                "read_int32s(view, position, n)"
                if code == "i"
                else f'read_numbers(view, position, n, "{code}")'
            )
            self.lines.add(store(read))
            self.lines.add(f"position += {size}")
            return
        items = self.unique(f"{f.name}_items")
        element_type = python_type(f).removesuffix(" | None")
        self.lines.add(f"{items}: {element_type} = []")
        with self.lines.block("for _ in range(n):"):
            self._element(f, items, body)
        self.lines.add(store(items))

    def _element(self, f: FieldSchema, items: str, body: Versions) -> None:
        if f.struct is not None:
            name = self.unique(snake_case(f.struct.name))
            self.lines.add(f"{name} = {f.struct.name}.__new__({f.struct.name})")
            self._struct(f.struct, name, body)
            self.lines.add(f"{items}.append({name})")
            return
        if f.type == "uuid":
            self.lines.add(f"{items}.append(bytes(view[position : position + 16]))")
            self.lines.add("position += 16")
            return
        element = f.element()
        self._length(element, body)
        self._value(element, f"{items}.append({{}})".format, body)

    # -- tagged fields -------------------------------------------------------------------------------------------

    def _tags(self, struct: StructSchema, target: str, body: Versions) -> None:
        known = struct.tagged(body)
        self._flush(body, "B")
        for f in known:
            self.lines.add(f"{target}.{f.name} = {default_of(f)}")
        with self.lines.block("if n:"):
            if not known:
                self.lines.add("position, left = skip_tags(view, position, n, left)")
                return
            self.lines.add("n, position, left = count_tags(view, position, n, left)")
            with self.lines.block("for _ in range(n):"):
                tag, stop = self.unique("tag"), self.unique("tag_end")
                self.lines.add(f"{tag}, position, {stop} = read_tag(view, position)")
                self._known_tags(known, target, (tag, stop), body)
                self.lines.add(f"check_tag(position, {stop}, {tag})")

    def _known_tags(
        self, known: list[FieldSchema], target: str, head: tuple[str, str], body: Versions
    ) -> None:
        tag, stop = head
        for index, f in enumerate(known):
            tests = [f"{tag} == {f.tag}", condition(f.versions, body) or ""]
            with self.lines.block(
                f"{'el' if index else ''}if {' and '.join(filter(None, tests))}:"
            ):
                self._tagged_value(f, target, f.versions & body)
        with self.lines.block("else:"):
            self.lines.add(f"position = {stop}")

    def _tagged_value(self, f: FieldSchema, target: str, body: Versions) -> None:
        place = f"{target}.{f.name}"
        if f.code is not None:
            self._run.append(RunItem(body, f.code, place, default_of(f)))
            self._flush(body)
            return
        self._length(f, body)
        self._value(f, f"{place} = {{}}".format, body)
