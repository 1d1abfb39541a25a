"""The records of the metadata store: formats that are read, and formats that are refused."""

from __future__ import annotations

import pytest

from headrace.core.cluster.records import (
    ClusterIdRecord,
    TombstoneRecord,
    TopicRecord,
    decode,
    encode,
)
from headrace.errors import StorageError
from headrace.ports import MetadataEntry


def entry(value: bytes, key: str = "deleted/11") -> MetadataEntry:
    return MetadataEntry(key, value, 1)


def test_a_record_is_read_as_it_was_written() -> None:
    record = TombstoneRecord("t", 3)
    assert decode(entry(encode(record)), TombstoneRecord) == record


def test_a_newer_format_is_refused_with_key_format_and_remedy() -> None:
    with pytest.raises(StorageError) as refused:
        decode(entry(b'{"name":"t","partitions_count":3,"format":9}'), TombstoneRecord)
    assert str(refused.value) == (
        "deleted/11: the entry is written in format 9, this version reads up to 2; "
        "start the newer version of Headrace that wrote the entry"
    )


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"name":"t","partitions_count":3,"racks":[],"format":1}', "unknown field `racks`"),
        (b'{"name":"t","format":1}', "`partitions_count`"),
        (b'{"name":"t","partitions_count":3,"format":0}', "reads format 1 or newer"),
    ],
)
def test_an_unreadable_record_is_refused_with_key_format_and_remedy(
    value: bytes, reason: str
) -> None:
    with pytest.raises(StorageError, match=reason) as refused:
        decode(entry(value), TombstoneRecord)
    assert str(refused.value).startswith("deleted/11: the entry in format ")
    assert "restore the metadata from a backup" in str(refused.value)


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"{}"])
def test_damaged_bytes_are_refused_with_the_key(value: bytes) -> None:
    with pytest.raises(StorageError, match="meta/cluster_id: the entry cannot be read"):
        decode(entry(value, "meta/cluster_id"), ClusterIdRecord)


def test_a_topic_of_a_newer_format_is_refused() -> None:
    with pytest.raises(StorageError, match="topics/t: the entry is written in format 99"):
        decode(entry(b'{"format":99}', "topics/t"), TopicRecord)
