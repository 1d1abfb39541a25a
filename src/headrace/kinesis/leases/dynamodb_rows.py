"""The row of a lease in DynamoDB, a stable format (docs/reference/kinesis-leases.md).

A reader ignores attributes that it does not know, and a writer leaves them unchanged. A row with a higher `v` was
written by a later version. A row without the attributes of every lease belongs to another program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headrace.core.lease.checkpoint import Checkpoint, parse_checkpoint
from headrace.core.lease.lease import HashRange, Lease, LeaseKey
from headrace.errors import ConfigError

ROW_VERSION: Final = 1
PARTITION_KEY: Final = "pk"
SORT_KEY: Final = "sk"
SEPARATOR: Final = "#"
"""The separator of group and stream in the partition key. Names of streams do not contain it, so the last one
separates.

In the key of a recorded value nothing follows it."""

Item = Mapping[str, Mapping[str, Any]]


class ForeignRowError(Exception):
    """A row is not a lease; the message contains the reason."""


def row_key(key: LeaseKey) -> dict[str, dict[str, str]]:
    """Return the key of a lease's row."""
    return {
        PARTITION_KEY: {"S": f"{key.group}{SEPARATOR}{key.stream}"},
        SORT_KEY: {"S": key.shard},
    }


def value_key(scope: str, name: str) -> dict[str, dict[str, str]]:
    """Return the key of a recorded value's row."""
    return {PARTITION_KEY: {"S": scope + SEPARATOR}, SORT_KEY: {"S": name}}


def item_of(lease: Lease) -> dict[str, dict[str, Any]]:
    """Return a lease as a row."""
    item: dict[str, dict[str, Any]] = {
        **row_key(lease.key),
        "v": number(ROW_VERSION),
        "cp": {"S": lease.checkpoint.position},
        "epoch": number(lease.epoch),
        "beat": number(lease.beat),
        "rate": number(lease.bytes_per_s),
        "switches": number(lease.switches),
    }
    if lease.checkpoint.sub_sequence is not None:
        item["sub"] = number(lease.checkpoint.sub_sequence)
    if lease.owner is not None:
        item["owner"] = {"S": lease.owner}
    if lease.next_owner is not None:
        item["next"] = {"S": lease.next_owner}
    if lease.parents:
        item["parents"] = {"SS": sorted(lease.parents)}
    if lease.hash_range is not None:
        item["hash"] = {"S": f"{lease.hash_range.first}-{lease.hash_range.last}"}
    return item


def lease_of(item: Item) -> Lease:
    """Return the lease in a row.

    Raises:
        ForeignRowError: The row is not a lease.
        ConfigError: A later version of Headrace has written the row.
    """
    pk, shard = item[PARTITION_KEY]["S"], item[SORT_KEY]["S"]
    try:
        group, separator, stream = pk.rpartition(SEPARATOR)
        version = int(item["v"]["N"])
        checkpoint = _checkpoint(item) if version <= ROW_VERSION else None
    except (KeyError, ValueError, TypeError, ConfigError) as error:
        raise ForeignRowError(_reason(error)) from error
    if checkpoint is None:
        raise ConfigError(
            f"the lease {pk}/{shard} was written by a later version of Headrace (v={version}). Upgrade Headrace"
        )
    if not group or not separator or not stream:
        raise ForeignRowError("its key is not group#stream")
    return _lease(item, LeaseKey(group, stream, shard), checkpoint)


def _lease(item: Item, key: LeaseKey, checkpoint: Checkpoint) -> Lease:
    try:
        return Lease(
            key=key,
            checkpoint=checkpoint,
            owner=item.get("owner", {}).get("S"),
            # Writes depend on epoch and beat: without them no member could ever take the lease.
            epoch=int(item["epoch"]["N"]),
            beat=int(item["beat"]["N"]),
            parents=frozenset(item.get("parents", {}).get("SS", ())),
            next_owner=item.get("next", {}).get("S"),
            hash_range=_hash_range(item.get("hash", {}).get("S")),
            bytes_per_s=float(item.get("rate", {}).get("N", 0)),
            switches=int(item.get("switches", {}).get("N", 0)),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ForeignRowError(_reason(error)) from error


def _checkpoint(item: Item) -> Checkpoint:
    sub = item.get("sub", {}).get("N")
    return parse_checkpoint(item["cp"]["S"], None if sub is None else int(sub))


def _hash_range(text: str | None) -> HashRange | None:
    if text is None:
        return None
    first, _, last = text.partition("-")
    return HashRange(int(first), int(last))


def number(value: float) -> dict[str, str]:
    """Return a number in DynamoDB's form, text of at most 38 digits. Sequence numbers are longer and stay strings."""
    return {"N": repr(value)}


def _reason(error: Exception) -> str:
    if not isinstance(error, KeyError):
        return str(error)
    name = error.args[0]
    return (
        "an attribute has another type" if name in {"S", "N"} else f"it has no attribute {name!r}"
    )
