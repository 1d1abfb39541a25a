"""Measure the cost of a typed value in a task: `python -m benchmarks.micro.decoding`."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import fastavro
from google.protobuf import type_pb2

from headrace.spark.decode.formats import codec_of
from headrace.spark.decode.options import DecodeOptions
from headrace.spark.decode.protobuf_values import inline_schema

ROWS = 10_000
ROUNDS = 20
FLIGHT = {
    "id": 1,
    "carrier": "UA",
    "delay": 12.5,
    "origin": "JFK",
    "late": True,
    "leg": {"from": "JFK", "to": "LAX"},
}
DDL = "id bigint, carrier string, delay double, origin string, late boolean, leg struct<`from`:string,`to`:string>"
AVRO: Any = {
    "type": "record",
    "name": "flight",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": "double"},
        {"name": "origin", "type": "string"},
        {"name": "late", "type": "boolean"},
        {
            "name": "leg",
            "type": {
                "type": "record",
                "name": "leg",
                "fields": [{"name": "from", "type": "string"}, {"name": "to", "type": "string"}],
            },
        },
    ],
}


def microseconds(options: DecodeOptions, value: bytes) -> float:
    """Return the smallest CPU time for one value in several rounds."""
    codec, values = codec_of(options), [value] * ROWS
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        codec.decode(values)
        best = min(best, time.process_time() - began)
    return best / ROWS * 1e6


def main() -> None:
    """Print the rows of the table in docs/guides/decoding.md."""
    avro = io.BytesIO()
    fastavro.schemaless_writer(avro, fastavro.parse_schema(AVRO), FLIGHT)
    message = type_pb2.Field(name="carrier", number=1, json_name="JFK", type_url="LAX", packed=True)
    cases = {
        "JSON, 7 fields": (DecodeOptions("json", DDL), json.dumps(FLIGHT).encode()),
        "Avro, 7 fields": (DecodeOptions("avro", json.dumps(AVRO)), avro.getvalue()),
        "Protobuf, 10 fields": (
            DecodeOptions("protobuf", inline_schema("google.protobuf.type_pb2:Field")),
            message.SerializeToString(),
        ),
    }
    for name, (options, value) in cases.items():
        print(f"| {name}, {len(value)} bytes | {microseconds(options, value):.1f} |")


if __name__ == "__main__":
    main()
