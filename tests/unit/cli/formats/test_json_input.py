"""`produce --from-json` reads the output of `consume --format json`: any record, byte by byte."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.commands.consume import _json_line
from headrace.cli.formats.json_reader import scan_json
from headrace.cli.formats.reader import InputError, ScannedRecord
from headrace.clients.consumer.records import ConsumerRecord

data = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)
# A header's name comes from bytes; those that are not UTF-8 are escaped, as the clients do.
names = st.binary(max_size=10).map(lambda name: name.decode("utf-8", "surrogateescape"))
records = st.builds(
    lambda partition, timestamp_ms, key, value, headers: ConsumerRecord(
        topic="t",
        partition=partition,
        offset=7,
        timestamp_ms=timestamp_ms,
        key=key,
        value=value,
        headers=tuple(headers),
        leader_epoch=3,
    ),
    st.integers(0, 2**31 - 1),
    st.integers(-1, 2**63 - 1),
    data,
    data,
    st.lists(st.tuples(names, data), max_size=4).map(
        lambda pairs: pairs + pairs[:1]  # a name may come twice
    ),
)


def scanned(text: bytes, *, keep_partition: bool = True) -> list[ScannedRecord]:
    return list(scan_json(io.BytesIO(text).read, keep_partition=keep_partition))


@pytest.mark.parametrize("keep", [True, False])
@given(given=st.lists(records, max_size=4))
def test_every_record_comes_back(keep: bool, given: list[ConsumerRecord]) -> None:  # noqa: FBT001 - pytest's
    text = b"".join(_json_line(record, 1) for record in given)
    assert scanned(text, keep_partition=keep) == [
        ScannedRecord(
            topic=record.topic,
            key=record.key,
            value=record.value,
            partition=record.partition if keep else None,
            timestamp_ms=record.timestamp_ms,
            headers=list(record.headers),
        )
        for record in given
    ]


def test_a_line_may_say_little_and_the_last_one_lack_its_end() -> None:
    assert scanned(b'{"value": "a"}\n\n  \r\n{"value": null, "key": ""}') == [
        ScannedRecord(value=b"a"),
        ScannedRecord(key=b""),
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"nonsense", "not JSON"),
        (b"[]", "expected a JSON object"),
        (b"{}", "'value' is missing"),
        (b'{"value": {"id": 1}}', "'value' is text"),
        (b'{"value": "a", "vaule": "b"}', "unknown field 'vaule'"),
        (b'{"value": "a", "partition": "0"}', "'partition' is a whole number"),
        (b'{"value": "a", "timestamp_ms": true}', "'timestamp_ms' is a whole number"),
        (b'{"value": "!", "value_encoding": "base64"}', "'value' is not base64"),
        (b'{"value": "a", "value_encoding": "hex"}', "'value_encoding' is base64 or missing"),
        (b'{"value": "\\ud800"}', "'value' is not text in Unicode"),
        (b'{"value": "a", "headers": {"a": "b"}}', "'headers' is a list"),
        (b'{"value": "a", "headers": [{"value": "b"}]}', "a header has a text 'key'"),
        (b'{"value": "\xff"}', "not JSON"),
    ],
)
def test_another_line_is_refused_by_its_number(line: bytes, why: str) -> None:
    with pytest.raises(InputError, match=why) as refused:
        scanned(json.dumps({"value": "first"}).encode() + b"\n" + line)
    assert "line 2: " in str(refused.value)
