"""A record of a topic as JSON in a stream. The bridge copies records with any bytes."""

from __future__ import annotations

import json

from headrace import ConsumerRecord
from headrace.kinesis.bridge.into_stream import enveloped
from headrace.records.batch import BatchHeader
from headrace.records.builder import build_batch
from headrace.records.reader import decode_batch


def test_header_names_that_are_not_utf_8_are_written_in_base64() -> None:
    odd = b"\xff".decode("utf-8", "surrogateescape")
    data = build_batch([(b"k", b"v", ((odd, b"\xfe"), ("own", b"1")), 5)])
    [record] = decode_batch(BatchHeader.parse(data, 0), data, 0)
    read = ConsumerRecord("orders", 0, 0, 5, record.key, record.value, record.headers, 0)
    assert json.loads(enveloped(read))["headers"] == [
        {"name": "/w==", "name_encoding": "base64", "value": "/g==", "value_encoding": "base64"},
        {"name": "own", "value": "1"},
    ]
