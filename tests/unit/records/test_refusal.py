"""The checks of a produced batch decode a bounded part of it, with the result of decoding all of it."""

from __future__ import annotations

import random

import pytest

from headrace.core.log.append.keys import require_keys
from headrace.core.scheduled.division import MAX_SCHEDULED_BYTES, divide
from headrace.errors import ApiError, CorruptRecordError, ErrorCode, InvalidRecordError
from headrace.records.batch import HEADER, HEADER_SIZE, BatchHeader
from headrace.records.builder import build_batch
from headrace.records.compression import Compression
from headrace.records.expiry import NOTHING_EXPIRES, check_expiry, expiry_of_batch
from headrace.records.raw import headers_in, iterate_raw, keyless, record_places, records_of
from headrace.records.reader import decode_data
from headrace.records.refusal import LOOK_BYTES, MAX_DIRECTED, MAX_HEADERS, MAX_KEYED

NOW_MS = 1_700_000_000_000
TTL = [("headrace.ttl-ms", b"5")]
DELAY = [("headrace.delay-ms", b"5")]


def code_of(batch: bytes, check) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        check(batch)
    return ErrorCode(caught.value.code)


def delays(batch: bytes) -> None:
    divide(batch, now_ms=NOW_MS, max_delay_ms=10**9)


@pytest.mark.parametrize(
    ("check", "headers", "most"),
    [
        (require_keys, [], MAX_KEYED),
        (check_expiry, TTL, MAX_DIRECTED),
        (delays, DELAY, MAX_DIRECTED),
    ],
)
def test_the_records_that_are_decoded_are_bounded(check, headers, most: int) -> None:
    records = [(b"k", b"", headers, NOW_MS)] * (most + 1)
    check(build_batch(records[:most], compression=Compression.ZSTD))
    many = build_batch(records, compression=Compression.ZSTD)
    assert code_of(many, check) == ErrorCode.MESSAGE_TOO_LARGE


def test_batches_without_directives_may_have_more_records() -> None:
    many = build_batch([(b"k", b"", (), NOW_MS)] * (MAX_DIRECTED + 1), compression=Compression.LZ4)
    assert check_expiry(many) == NOTHING_EXPIRES
    assert divide(many, now_ms=NOW_MS, max_delay_ms=1) is None


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_the_bytes_that_are_decoded_are_bounded(codec: Compression) -> None:
    noise = random.Random(1).randbytes(20_000)  # or the batch would be refused for its ratio
    for size, large in ((LOOK_BYTES - 30_000, False), (LOOK_BYTES, True)):
        batch = build_batch(
            [(b"k", noise + bytes(size - len(noise)), (), NOW_MS)], compression=codec
        )
        for check in (require_keys, check_expiry, delays):
            if large:
                assert code_of(batch, check) == ErrorCode.MESSAGE_TOO_LARGE
            else:
                check(batch)
        assert expiry_of_batch(BatchHeader.parse(batch), batch) == NOTHING_EXPIRES


def test_the_bytes_of_batches_that_wait_are_bounded() -> None:
    for size, large in ((MAX_SCHEDULED_BYTES - 100, False), (MAX_SCHEDULED_BYTES, True)):
        batch = build_batch([(b"k", bytes(size), DELAY, NOW_MS)])
        if large:
            assert code_of(batch, delays) == ErrorCode.MESSAGE_TOO_LARGE
        else:
            delays(batch)


@pytest.mark.parametrize(("check", "directive"), [(check_expiry, TTL), (delays, DELAY)])
def test_the_headers_that_are_decoded_are_bounded(check, directive) -> None:
    few = [*[("a", None)] * (MAX_HEADERS // 2 - 1), *directive]
    many = [("b", None), *few]
    check(build_batch([(b"k", b"", few, NOW_MS)] * 2))
    other = [(b"k", b"", [("c", None), *few], NOW_MS), (b"k", b"", many, NOW_MS)]
    assert code_of(build_batch(other), check) == ErrorCode.INVALID_RECORD
    without = [("a", None)] * (2 * MAX_HEADERS)
    check(build_batch([(b"k", b"", without, NOW_MS), (b"k", b"", directive, NOW_MS)]))


def some_records(choice: random.Random):
    contents = [None, b"", b"k", b"x" * 63, b"x" * 64, b"y" * 9000]
    names = ["headrace.ttl-ms", "a", "", "b" * 70]
    return [
        (
            choice.choice(contents),
            choice.choice(contents),
            [
                (choice.choice(names), choice.choice([None, b"", b"7", b"12", b"seven"]))
                for _ in range(choice.choice([0, 0, 1, 3]))
            ],
            NOW_MS + choice.choice([0, 1, -63, 64, 10**6, -(10**9)]),
        )
        for _ in range(choice.randrange(1, 150))
    ]


@pytest.mark.parametrize("seed", range(30))
def test_walks_over_raw_records_equal_decoding(seed: int) -> None:
    choice = random.Random(seed)
    batch = build_batch(some_records(choice))
    header = BatchHeader.parse(batch)
    data = records_of(header, batch)
    decoded = decode_data(header, data)
    places = list(record_places(data, header.records_count))
    assert [header.base_timestamp + place[2] for place in places] == [r.timestamp for r in decoded]
    assert [place[3] for place in places] == [record.offset for record in decoded]
    for (_, end, _, _, headers_at), record in zip(places, decoded, strict=True):
        headers = headers_in(data[headers_at:end], 3)
        assert [(name.decode(), value) for name, value in headers] == list(record.headers)
    without = [number for number, record in enumerate(decoded) if record.key is None]
    assert keyless(data, header.records_count, 5) == without[:5]


@pytest.mark.parametrize("seed", range(30))
def test_require_keys_refuses_exactly_the_damage_that_compaction_cannot_read(seed: int) -> None:
    # A record that compaction cannot read would keep its log from being compacted for good.
    choice = random.Random(seed)
    records = [(b"k" * choice.choice([1, 70]), b"v" * choice.choice([0, 90]), (), NOW_MS)] * 20
    batch = build_batch(records)
    header = BatchHeader.parse(batch)
    for _ in range(200):
        data = bytearray(records_of(header, batch))
        for _ in range(choice.randrange(1, 4)):
            data[choice.randrange(len(data))] = choice.randrange(256)
        size = choice.choice([len(data), choice.randrange(len(data))])
        damaged = bytes(data[:size])
        try:
            found = [(delta, key) for *_, delta, key, _ in iterate_raw(damaged, 20)]
        except CorruptRecordError:
            found = None
        whole = HEADER.pack(*header._replace(batch_length=HEADER_SIZE - 12 + size)) + damaged
        sound = found is not None and all(
            delta == number and key is not None for number, (delta, key) in enumerate(found)
        )
        if sound:
            require_keys(whole)
        else:
            with pytest.raises(InvalidRecordError):
                require_keys(whole)
