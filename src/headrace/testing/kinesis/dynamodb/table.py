"""One table: items by a hash key and, if the table has one, a range key."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.testing.kinesis.dynamodb.values import (
    Item,
    Value,
    checked,
    orderable,
    refused,
    size_of,
    wrong,
)
from headrace.testing.kinesis.errors import in_use, not_found

Key = tuple[Any, ...]
"""The hash key and the range key of an item, in a form that can be ordered."""

_LARGEST_ITEM: Final = 400 << 10
_LONGEST_KEY: Final = {"hash": 2048, "range": 1024}


@dataclass(slots=True)
class Table:
    """A table with its items.

    Attributes:
        name: The name of the table.
        arn: The ARN of the table.
        keys: The types of the key's attributes, by name: the hash key, then the range key if there is one.
        created_ms: The creation time in milliseconds.
        ready_ms: The time until which the status is CREATING.
        gone_ms: The end of the deletion; None if the table is not being deleted.
        items: The items by their keys.
        billing: `PAY_PER_REQUEST` or `PROVISIONED`.
        units: The provisioned read and write units.
    """

    name: str
    arn: str
    keys: dict[str, str]
    created_ms: int
    ready_ms: int
    billing: str = "PROVISIONED"
    units: dict[str, int] = field(default_factory=dict)
    gone_ms: int | None = None
    items: dict[Key, Item] = field(default_factory=dict)

    def status(self, now_ms: int) -> str:
        """Return the status: CREATING, ACTIVE or DELETING."""
        if self.gone_ms is not None:
            return "DELETING"
        return "ACTIVE" if now_ms >= self.ready_ms else "CREATING"

    def require_usable(self, now_ms: int) -> None:
        """Refuse reads and writes before the table is ready."""
        if now_ms < self.ready_ms:
            raise not_found("Requested resource not found")

    def require_active(self, now_ms: int) -> None:
        """Refuse changes while another change is in progress."""
        if (status := self.status(now_ms)) != "ACTIVE":
            raise in_use(
                f"Attempt to change a resource which is still in use: Table: {self.name} is "
                f"{status}"
            )

    def key_of(self, item: Item) -> Key:
        """Return the key of an item.

        Raises:
            AwsError: The key of the item does not match the table's key.
        """
        for place, (name, kind) in zip(("hash", "range"), self.keys.items(), strict=False):
            if name not in item:
                raise wrong(f"Missing the key {name} in the item")
            self._check_key(name, kind, item[name], _LONGEST_KEY[place])
        return tuple(orderable(item[name]) for name in self.keys)

    def _check_key(self, name: str, kind: str, value: Value, longest: int) -> None:
        if kind not in value:
            found = next(iter(value))
            raise wrong(f"Type mismatch for key {name} expected: {kind} actual: {found}")
        if value[kind] == "":
            raise wrong(
                "The AttributeValue for a key attribute cannot contain an empty string value. "
                f"Key: {name}"
            )
        if kind != "N" and len(value[kind].encode()) > longest:
            raise wrong(
                f"Size of key {name} has exceeded the maximum size limit of {longest} bytes"
            )

    def exact_key(self, given: Any) -> Key:
        """Return the key of a request's `Key` member, which must contain nothing else."""
        key = checked_item(given)
        if set(key) != set(self.keys) or any(
            kind not in key[name] for name, kind in self.keys.items()
        ):
            raise refused("The provided key element does not match the schema")
        return self.key_of(key)

    def put(self, place: Key, item: Item) -> None:
        """Write an item to the table."""
        if size_of(item) > _LARGEST_ITEM:
            raise refused("Item size has exceeded the maximum allowed size")
        self.items[place] = item

    def in_order(self, hash_key: Any = None) -> list[Item]:
        """Return items by range key: the items of one hash key, or all items."""
        chosen = (
            self.items if hash_key is None else [key for key in self.items if key[0] == hash_key]
        )
        return [self.items[key] for key in sorted(chosen, key=self.order)]

    def order(self, key: Key) -> tuple[bytes, Key]:
        """Return the sort key of items: hash keys in a meaningless order, then range keys."""
        scattered = hashlib.md5(str(key[0]).encode(), usedforsecurity=False).digest()
        return scattered, key

    def key_item(self, item: Item) -> Item:
        """Return the key attributes of an item."""
        return {name: item[name] for name in self.keys}

    def described(self, now_ms: int) -> dict[str, object]:
        """Return the description of the table in replies."""
        places = ("HASH", "RANGE")
        units = {"ReadCapacityUnits": 0, "WriteCapacityUnits": 0, **self.units}
        return {
            "TableName": self.name,
            "TableArn": self.arn,
            "TableStatus": self.status(now_ms),
            "CreationDateTime": self.created_ms / 1000,
            "AttributeDefinitions": [
                {"AttributeName": name, "AttributeType": kind} for name, kind in self.keys.items()
            ],
            "KeySchema": [
                {"AttributeName": name, "KeyType": place}
                for name, place in zip(self.keys, places, strict=False)
            ],
            "BillingModeSummary": {"BillingMode": self.billing},
            "ProvisionedThroughput": {"NumberOfDecreasesToday": 0, **units},
            "ItemCount": len(self.items),
            "TableSizeBytes": sum(size_of(item) for item in self.items.values()),
        }


def checked_item(given: Any) -> Item:
    """Return an item with checked values."""
    if not isinstance(given, dict):
        raise refused(
            "1 validation error detected: Value null at 'item' failed to satisfy constraint: "
            "Member must not be null"
        )
    return {name: checked(value) for name, value in given.items()}
