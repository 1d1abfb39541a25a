"""The template language: what it writes, what it reads, and that one undoes the other."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.formats.reader import InputError, Source, compile_reader, scan_records
from headrace.cli.formats.template import TemplateError, parse_template
from headrace.cli.formats.writer import compile_writer
from headrace.clients.consumer.records import ConsumerRecord

RECORD = ConsumerRecord(
    "orders", 2, 7, 1357017300005, b"alice", b'{"id":1}', (("a", b"1"), ("b", None)), 3
)


def written(template: str, record: ConsumerRecord = RECORD, number: int = 1) -> bytes:
    return compile_writer(parse_template(template))(record, number)


def scan(template: str, data: bytes, step: int = 1 << 20):
    pieces = [data[start : start + step] for start in range(0, len(data), step)]
    source = Source(lambda: pieces.pop(0) if pieces else b"")
    return list(scan_records(compile_reader(parse_template(template)), source))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("%t[%p]@%o %k: %v\\n", b'orders[2]@7 alice: {"id":1}\n'),
        ("%T %d %e %i", b"1357017300005 1357017300005 3 1"),
        ("%K %V %S %H", b"5 8 8 2"),
        ("%s", b'{"id":1}'),
        ("%k{hex} %k{base64} %k{json} %v{json}", b'616c696365 YWxpY2U= "alice" {"id":1}'),
        ("%h{%k=%v;}", b"a=1;b=;"),
        ("%h{<%K,%V%}>}", b"<1,1}><1,0}>"),
        ("%d{iso}", b"2013-01-01T05:15:00.005Z"),
        ("%d{strftime[%Y-%m-%d %H:%M]}", b"2013-01-01 05:15"),
        ("%d{strftime[{%F}]}", b"{2013-01-01}"),
        ("%o{hex} %o{hex16} %o{hex4}", b"7 0007 7"),
        ("%o{big32}%o{little16}%o{byte}", b"\0\0\0\x07\x07\0\x07"),
        ("%V{big8}%p{big64}", b"\x08\0\0\0\0\0\0\0\x02"),
        ("%% %{ %} %n\\n\\r\\t\\\\\\x00\\xfF\\0", b"% { } \n\n\r\t\\\0\xff\0"),
        ("été {plain}", "été {plain}".encode()),
    ],
)
def test_a_template_formats_a_record(template: str, expected: bytes) -> None:
    assert written(template) == expected


def test_null_and_binary_are_written() -> None:
    record = RECORD._replace(key=None, value=b"\xff\0", timestamp_ms=-1, headers=())
    assert (
        written("%k|%K|%v|%k{json}|%v{json}|%h{x}", record) == b'|0|\xff\0|null|"\\\\xff\\u0000"|'
    )
    assert written("%d %d{hex64}", record) == b"-1 ffffffffffffffff"


def test_json_in_a_template_makes_json() -> None:
    line = written('{"k":%k{json},"v":%v{json}}')
    assert json.loads(line) == {"k": "alice", "v": {"id": 1}}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("%q", "unknown token %q"),
        ("%", "unknown token %"),
        ("%v{", "not closed"),
        ("%v{json", "not closed"),
        ("%v{big32}", "no modifier {big32}"),
        ("%o{base64}", "no modifier {base64}"),
        ("%h", "needs a template"),
        ("%h{%k", "no closing brace"),
        ("%h{}", "empty"),
        ("%h{%o}", "not allowed inside"),
        ("%h{%h{x}}", "not allowed inside"),
        ("\\q", "unknown escape"),
        ("\\xg0", "two hexadecimal digits"),
        ("\\", "unknown escape"),
    ],
)
def test_mistakes_in_templates_are_named(template: str, text: str) -> None:
    with pytest.raises(TemplateError) as raised:
        parse_template(template)
    assert text in str(raised.value)


@given(st.text("%tkvpodeKVHihsST{}[]\\nx0fa big32", max_size=30))
def test_any_text_is_a_template_or_a_mistake(text: str) -> None:
    try:
        pieces = parse_template(text)
    except TemplateError:
        return
    compile_writer(pieces)(RECORD, 1)


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_lines_are_values_and_the_last_may_lack_its_newline(step: int) -> None:
    assert [r.value for r in scan("%v\\n", b"a\n\nb c\nlast", step)] == [b"a", b"", b"b c", b"last"]
    assert scan("%v\\n", b"", step) == []


@pytest.mark.parametrize("step", [1, 1000])
def test_every_field_of_a_template_can_be_read(step: int) -> None:
    template = "%t %p %d %K %k %V{big32}%v %H{byte}%h{%k=%v,%n}"
    data = b"orders 3 -17 5 a b c \0\0\0\x02xy \x02h1=v1,\nh2=,\n"
    [record] = scan(template, data, step)
    assert (record.topic, record.partition, record.timestamp_ms) == ("orders", 3, -17)
    assert (record.key, record.value) == (b"a b c", b"xy")
    assert record.headers == [("h1", b"v1"), ("h2", b"")]


@pytest.mark.parametrize("step", [1, 4, 1000])
def test_json_values_are_taken_whole(step: int) -> None:
    data = b'{"a": "}\\"{", "b": [1, {"c": null}]}\n  [1,2]\n"x\\\\"\n-1.5e3\ntrue'
    values = [r.value for r in scan("%v{json}\\n", data, step)]
    assert values == [
        b'{"a": "}\\"{", "b": [1, {"c": null}]}',
        b"[1,2]",
        b'"x\\\\"',
        b"-1.5e3",
        b"true",
    ]


def test_a_template_without_end_reads_the_rest() -> None:
    [record] = scan("%k %v", b"key all the rest\nof it\n" * 1, 5)
    assert record.value == b"all the rest\nof it\n"


@pytest.mark.parametrize(
    ("template", "data", "text"),
    [
        ("%k:%v\\n", b"a:1\nb\n", "record 2"),
        ("%p\\n", b"x\n", "expected a number (%p)"),
        ("%p \\n", b"1x\n", "expected"),
        ("%V %v\\n", b"5 abc", "the input ends, but 5 more bytes"),
        ("%V %v\\n", b"-1 abc", "not a size"),
        ("%v{hex}\\n", b"0g\n", "not hexadecimal"),
        ("%v{base64}\\n", b"!\n", "not base64"),
        ("%v{json}\\n", b"{]}\n", "not JSON"),
        ("%v{json}\\n", b'{"a": \n', "record 1"),
        ("%o{hex8}%v\\n", b"zz\n", "hexadecimal number"),
    ],
)
def test_input_of_another_form_is_named_with_its_record(
    template: str, data: bytes, text: str
) -> None:
    with pytest.raises(InputError) as raised:
        scan(template, data)
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("%k%v\\n", "does not define the end of %k"),
        ("%h{%k=%v }\\n", "must read their number first"),
        ("%H %h{%k%v }\\n", "does not define the end of %k"),
        ("%H %h{%k=%v}\\n", "does not define the end of %v"),
        ("%d{iso} %v\\n", "can be written but not read"),
        ("literal\\n", "no token"),
    ],
)
def test_templates_that_cannot_be_read_are_refused(template: str, text: str) -> None:
    with pytest.raises(TemplateError) as raised:
        compile_reader(parse_template(template))
    assert text in str(raised.value)


HEADER_NAMES = st.text(max_size=8).map(lambda text: text.encode("utf-8", "replace").decode())
RECORDS = st.lists(
    st.builds(
        ConsumerRecord,
        st.text("abc", min_size=1, max_size=5),
        st.integers(0, 1000),
        st.integers(0, 1 << 40),
        st.integers(-1, 1 << 45),
        st.binary(max_size=20),
        st.binary(max_size=40),
        st.lists(st.tuples(HEADER_NAMES, st.binary(max_size=9)), max_size=3).map(tuple),
        st.just(0),
    ),
    max_size=5,
)
ROUND_TRIPS = [
    "%t %p %o %d %K %k%V %v%H %h{%K %k%V %v}\\n",
    "%t,%p{big32}%d{big64}%K{big16}%k%V{little32}%v%H{byte}%h{%K{byte}%k%V{big32}%v}",
    "%t %p{hex} %d %k{hex} %v{base64} %H %h{%k{hex}=%v{base64};}\\n",
    "%t %p %d %K{hex8}%k{hex}%V{hex32}%v{base64}%H{hex4}%h{%K %k{base64}%V %v{hex}}\\n",
]


@pytest.mark.parametrize("template", ROUND_TRIPS)
@given(records=RECORDS, step=st.integers(1, 50))
def test_a_template_reads_its_own_output(template: str, records, step: int) -> None:
    data = b"".join(written(template, record, n) for n, record in enumerate(records))
    read = scan(template, data, step)
    assert [
        (r.topic, r.partition, r.timestamp_ms, r.key, r.value, tuple(r.headers)) for r in read
    ] == [(r.topic, r.partition, r.timestamp_ms, r.key, r.value, r.headers) for r in records]


@given(st.binary(max_size=200), st.sampled_from([*ROUND_TRIPS, "%v{json}\\n", "%k:%v\\n"]))
def test_any_input_is_records_or_a_mistake(data: bytes, template: str) -> None:
    with contextlib.suppress(InputError):
        scan(template, data, 7)


def test_reading_waits_for_no_more_than_it_needs() -> None:
    chunks = [b"first\n", b"second\n"]
    reads = 0

    def read() -> bytes:
        nonlocal reads
        reads += 1
        return chunks.pop(0) if chunks else b""

    records = scan_records(compile_reader(parse_template("%v\\n")), Source(read))
    assert next(records).value == b"first"
    assert reads == 1, "a record that is here is handed out before the next is waited for"
