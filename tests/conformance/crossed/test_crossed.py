"""Every setting of a topic with every writer, reader and command: readers return the written bytes.

A case succeeds, or is refused as the table below says. `make test` runs cases with each single value;
HEADRACE_CROSSED=1 runs cases with each pair of values of two factors.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import pytest

from headrace.errors import HeadraceError
from headrace.records.batch import iterate_headers
from headrace.records.compression import Compression
from headrace.testing import Broker, FakeAws
from tests.conformance.crossed import readers, writers
from tests.conformance.crossed.commands import COMMANDS, configs
from tests.conformance.crossed.pairs import Case, cover
from tests.conformance.crossed.readers import EMPTY_IS_NULL, NO_HEADERS, READERS
from tests.conformance.crossed.records import Sent
from tests.conformance.crossed.writers import ANY_HEADERS, WRITERS, Place, RefusedError

FACTORS = {
    "serde": ["none", "bytes", "str", "json", "elsewhere"],
    "key_serde": ["none", "str", "json", "elsewhere"],
    "partitioner": ["none", "key_hash", "round_robin", "sticky", "random", "elsewhere"],
    "storage": ["files", "linked", "array"],
    "durability": ["os", "interval:20", "fsync"],
    "cleanup": ["delete", "compact", "compact,delete"],
    "extra": ["none", "ttl", "delay", "filter"],
    "stored": ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"],
    "compression": ["none", "gzip", "snappy", "lz4", "zstd"],
    "acks": ["all", "1", "0"],
    "writer": list(WRITERS),
    "reader": list(READERS),
    "command": list(COMMANDS),
}
"""`elsewhere` is the name of a serde or partitioner that was registered in another program, and is not known here;
`stored` is the topic's `compression.type`, `compression` the producer's."""
CASES = cover(FACTORS, strength=2 if os.environ.get("HEADRACE_CROSSED") else 1)


def _unknown(case: Case, what: str) -> bool:
    return case[what] == "elsewhere"


TOPIC_REFUSED: list[tuple[Callable[[Case], bool], str]] = [
    (
        lambda case: case["extra"] in {"ttl", "delay"} and case["cleanup"] != "delete",
        ".enable needs cleanup.policy=delete",
    ),
]
WRITER_REFUSED: list[tuple[Callable[[Case], bool], str]] = [
    (
        lambda case: _unknown(case, "serde") and case["writer"] in writers.TYPED,
        "no serde is called 'elsewhere'",
    ),
    (
        lambda case: (
            _unknown(case, "key_serde") and case["writer"] in writers.TYPED - {"worker"}
        ),  # it writes keys of bytes unchanged
        "no serde is called 'elsewhere'",
    ),
    (
        lambda case: _unknown(case, "partitioner") and case["writer"] in writers.OBEY_PARTITIONER,
        "no partitioner is called 'elsewhere'",
    ),
]
READER_REFUSED: list[tuple[Callable[[Case], bool], str]] = [
    (
        # A stream's partition keys are text, whatever the topic's keys should be.
        lambda case: (
            case["writer"] == "bridge"
            and case["key_serde"] == "json"
            and case["reader"] in readers.TYPED
        ),
        "does not decode",
    ),
    (
        lambda case: (
            "elsewhere" in {case["serde"], case["key_serde"]} and case["reader"] in readers.TYPED
        ),
        "no serde is called 'elsewhere'",
    ),
]
COMMAND_REFUSED: list[tuple[Callable[[Case], bool], str]] = [
    (
        lambda case: _unknown(case, "partitioner") and case["command"] == "dlq",
        "no partitioner is called 'elsewhere'",
    ),
    (
        lambda case: case["cleanup"] == "compact" and case["command"] in {"topic truncate", "dlq"},
        "POLICY_VIOLATION",
    ),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("crossed")) as running:
        yield running


@pytest.fixture(scope="module")
def aws() -> Iterator[FakeAws]:
    with FakeAws() as running:
        yield running


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case.values()))
@pytest.mark.timeout(90)
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning:kafka")
def test_every_reader_returns_the_records_of_every_writer(
    broker: Broker, aws: FakeAws, case: Case
) -> None:
    if "kcat" in {case["writer"], case["reader"]} and shutil.which("kcat") is None:
        pytest.skip("kcat is not installed")
    place = Place(broker, aws, f"crossed-{CASES.index(case)}", case)
    if _refused(
        case, TOPIC_REFUSED, lambda: broker.create_topic(place.topic, 2, configs=configs(place))
    ):
        # The rest of the case still tests something.
        place.case = case = {**case, "extra": "none"}
        broker.create_topic(place.topic, 2, configs=configs(place))
    written: list[Sent] = []
    if _refused(case, WRITER_REFUSED, lambda: written.extend(WRITERS[case["writer"]](place))):
        written += writers.confluent(place)
    broker.wait_for(topic=place.topic, records=len(written))
    assert case["stored"] == "producer" or _codecs(broker, place.topic) == {case["stored"]}
    found: list[Sent] = []
    if not _refused(
        case, READER_REFUSED, lambda: found.extend(READERS[case["reader"]](place, len(written)))
    ):
        assert _comparable(case, found) == _comparable(case, written)
    _refused(case, COMMAND_REFUSED, lambda: COMMANDS[case["command"]](place, written))


def _codecs(broker: Broker, topic: str) -> set[str]:
    """Return the codecs of the batches in a topic."""
    services = broker._core.services
    names = set()
    for partition in services.partitions.of(services.topics.require(topic)):
        assert partition is not None
        log = partition.log
        offset = log.log_start_offset
        while (
            content := log.read(offset, max_bytes=1 << 20, up_to=offset + 1000, minimum_one=True)
        ) is not None:
            for _, header in iterate_headers(content.read()):
                offset = header.last_offset + 1
                if not header.is_control:
                    codec = Compression(header.compression)
                    names.add(codec.name.lower() if codec else "uncompressed")
    return names


def _refused(
    case: Case, table: list[tuple[Callable[[Case], bool], str]], act: Callable[[], object]
) -> bool:
    """Call a function, and return whether it was refused, which the table must say."""
    expected = {text for meets, text in table if meets(case)}
    said = None
    try:
        act()
    except (HeadraceError, RefusedError) as error:
        said = str(error)
    assert (said is not None) == bool(expected), f"{case}: expected {expected or 'success'}: {said}"
    assert said is None or any(text in said for text in expected), said
    return said is not None


def _comparable(case: Case, sent: list[Sent]) -> list[tuple[object, ...]]:
    """Return the records sorted, without the fields that the writer does not set or the reader does not return."""
    hidden = case["writer"] == "bridge" or case["reader"] == "kcat"
    rows = []
    for each in sent:
        headers = () if hidden or each.headers in {ANY_HEADERS, NO_HEADERS} else each.headers
        value = each.value
        if case["reader"] in EMPTY_IS_NULL:
            value = value or b""
            headers = tuple((name, data or b"") for name, data in headers)
        rows.append((each.key, value is None, value or b"", tuple(map(repr, headers))))
    return sorted(rows)
