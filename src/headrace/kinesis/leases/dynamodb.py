"""Leases in a table of DynamoDB: for members on any number of machines, and any number of groups in one table.

The store only uses conditional writes: no transactions, no secondary indexes, no time to live, and no clock.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Any, Final

from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.errors import LeaseStoreError
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.client.settings import AwsSettings
from headrace.kinesis.leases import writes
from headrace.kinesis.leases.dynamodb_calls import ConditionRefusedError, DynamoCalls
from headrace.kinesis.leases.dynamodb_rows import (
    PARTITION_KEY,
    SEPARATOR,
    SORT_KEY,
    ForeignRowError,
    Item,
    item_of,
    lease_of,
    number,
    row_key,
    value_key,
)
from headrace.kinesis.leases.dynamodb_table import TableSettings, open_table
from headrace.kinesis.leases.dynamodb_update import Update

_LOG: Final = logging.getLogger(__name__)
_AT_ONCE: Final = 16
_TIMEOUT_MS: Final = 4_500
"""The default timeout. It is shorter than a member's own timeout, so that the member gets the reason of a failure."""


class DynamoLeaseStore:
    """A `LeaseStore` in a table of DynamoDB.

    Args:
        table: The name of the table.
        aws: Region, credentials and endpoint; or a client.
        settings: Whether and how the table is created.
        timeout_ms: The time limit of an operation with all its attempts, in milliseconds.
    """

    def __init__(
        self,
        table: str,
        aws: AwsSettings | None = None,
        *,
        settings: TableSettings | None = None,
        timeout_ms: int = _TIMEOUT_MS,
    ) -> None:
        self._table = table
        self._aws = aws or AwsSettings()
        self._settings = settings or TableSettings()
        self._timeout_ms = timeout_ms
        self._stack = AsyncExitStack()
        self._opened: DynamoCalls | None = None
        self._warned: set[tuple[str, str]] = set()

    async def open(self) -> None:
        """Connect, create the table if it is missing, and check its key.

        Raises:
            ConfigError: The table has another key, is missing and is not to be created, or access is denied.
            LeaseStoreError: DynamoDB does not answer.
        """
        if self._opened is not None:
            return
        client = await self._stack.enter_async_context(open_client(self._aws, "dynamodb"))
        calls = DynamoCalls(client, self._table, timeout_ms=self._timeout_ms)
        try:
            await open_table(calls, self._settings)
        except BaseException:
            await self._stack.aclose()
            raise
        self._opened = calls

    async def close(self) -> None:
        """Close the connections of the store."""
        self._opened = None
        await self._stack.aclose()

    async def leases(self, group: str, stream: str) -> list[Lease]:
        """Return all leases of a group on a stream, sorted by shard. The read is consistent."""
        found = []
        key = row_key(LeaseKey(group, stream, ""))[PARTITION_KEY]
        async for item in self._query(key):
            try:
                found.append(lease_of(item))
            except ForeignRowError as error:
                self._warn(item, error)
        return found

    async def streams(self) -> list[tuple[str, str]]:
        """Return every (group, stream) that has leases, sorted. This reads the whole table."""
        found = set()
        scan = self._calls.pages(
            "scan",
            ProjectionExpression="#pk",
            FilterExpression="attribute_exists(#cp) AND attribute_exists(#epoch) AND attribute_exists(#v)",
            ExpressionAttributeNames={
                f"#{name}": name for name in (PARTITION_KEY, "cp", "epoch", "v")
            },
            ConsistentRead=True,
        )
        async for item in scan:
            group, _, stream = item[PARTITION_KEY]["S"].rpartition(SEPARATOR)
            if group and stream:
                found.add((group, stream))
        return sorted(found)

    async def create(self, lease: Lease) -> bool:
        """Write a lease unless one with its key exists; return whether it was written."""
        writes.check_key(lease.key)
        return await self._put_new(item_of(lease))

    async def take(self, seen: Lease, owner: str) -> Lease | None:
        """Make a member the owner if epoch and beat are as seen; return the lease, or None."""
        update = Update().set("owner", {"S": owner}).remove("next").add("switches", 1)
        update.set("epoch", number(seen.epoch + 1)).set("beat", number(seen.beat + 1))
        row = await self._write(seen.key, update.when_seen(seen))
        if row is not None:
            return row
        now = await self._read(seen.key)
        if now is None or (now.owner, now.epoch, now.beat) != (
            owner,
            seen.epoch + 1,
            seen.beat + 1,
        ):
            return None
        # An earlier attempt, whose answer was lost, has written this. Other members measure the lease from that
        # attempt, and this owner from now, so the beat has to change again.
        row = await self.renew(seen.key, owner, seen.epoch + 1, seen.beat + 2)
        return row if row is not None and row.beat == seen.beat + 2 else None

    async def renew(
        self,
        key: LeaseKey,
        owner: str,
        epoch: int,
        beat: int,
        *,
        checkpoint: Checkpoint | None = None,
        bytes_per_s: float | None = None,
    ) -> Lease | None:
        """Write a higher beat, and a checkpoint if there is one, if (owner, epoch) holds."""
        update = (
            Update().set("beat", number(beat)).when_owned(owner, epoch).when_below("beat", beat)
        )
        if bytes_per_s is not None:
            update.set("rate", number(bytes_per_s))
        if checkpoint is not None:
            update.checkpoint(checkpoint)
        row = await self._write(key, update)
        if row is not None:
            return row
        # The lease has another owner; or an earlier attempt has written this renewal; or the renewal is late.
        now = await self._read(key)
        return now if now is not None and (now.owner, now.epoch) == (owner, epoch) else None

    async def ask(self, seen: Lease, asker: str) -> bool:
        """Write the asking member if the epoch is as seen and no other member asks."""
        update = Update().set("next", {"S": asker}).when("epoch", number(seen.epoch))
        return await self._write(seen.key, update.when_absent_or("next", {"S": asker})) is not None

    async def give(
        self,
        key: LeaseKey,
        owner: str,
        epoch: int,
        *,
        to: str | None,
        checkpoint: Checkpoint | None,
    ) -> bool:
        """Release the lease, or transfer it, with the checkpoint, in one write."""
        update = Update().set("epoch", number(epoch + 1)).remove("owner")
        update = update.remove("next") if to is None else update.set("next", {"S": to})
        if checkpoint is not None:
            update.checkpoint(checkpoint)
        if await self._write(key, update.when_owned(owner, epoch)) is not None:
            return True
        now = await self._read(key)
        return now is not None and (now.owner, now.next_owner, now.epoch) == (None, to, epoch + 1)

    async def reset(self, seen: Lease, checkpoint: Checkpoint) -> Lease | None:
        """Write an administrator's checkpoint if epoch and beat are as seen."""
        update = Update().set("epoch", number(seen.epoch + 1)).remove("owner").remove("next")
        row = await self._write(seen.key, update.checkpoint(checkpoint).when_seen(seen))
        if row is not None:
            return row
        now = await self._read(seen.key)
        repeated = now is not None and writes.is_moved(now, seen, checkpoint)
        return now if repeated else None

    async def delete(self, seen: Lease) -> bool:
        """Remove a row if its epoch is as seen; return whether it is removed."""
        try:
            await self._calls.call(
                "delete_item",
                Key=row_key(seen.key),
                ConditionExpression="attribute_not_exists(#pk) OR #epoch = :epoch",
                ExpressionAttributeNames={"#pk": PARTITION_KEY, "#epoch": "epoch"},
                ExpressionAttributeValues={":epoch": number(seen.epoch)},
            )
        except ConditionRefusedError:
            return False
        return True

    async def record_once(self, scope: str, name: str, value: str) -> str:
        """Write a value under a name unless it has one; return the value that is stored now."""
        writes.check_name("scope", scope)
        key = value_key(scope, name)
        if await self._put_new({**key, "value": {"S": value}}):
            return value
        answer = await self._calls.call("get_item", Key=key, ConsistentRead=True)
        if "Item" not in answer:
            return await self.record_once(scope, name, value)  # it was removed meanwhile
        return str(answer["Item"]["value"]["S"])

    async def recorded(self, scope: str) -> dict[str, str]:
        """Return all values of a scope by name. The read is consistent."""
        rows = self._query(value_key(scope, "")[PARTITION_KEY])
        return {item[SORT_KEY]["S"]: item["value"]["S"] async for item in rows if "value" in item}

    async def forget(self, scope: str, names: list[str]) -> None:
        """Remove values. Missing ones are ignored."""
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            await asyncio.gather(
                *(self._calls.call("delete_item", Key=value_key(scope, name)) for name in some)
            )

    @property
    def _calls(self) -> DynamoCalls:
        if self._opened is None:
            raise LeaseStoreError(f"the lease store in the table {self._table} is not open")
        return self._opened

    def _query(self, partition_key: dict[str, str]) -> Any:
        return self._calls.pages(
            "query",
            KeyConditionExpression="#pk = :pk",
            ExpressionAttributeNames={"#pk": PARTITION_KEY},
            ExpressionAttributeValues={":pk": partition_key},
            ConsistentRead=True,
        )

    async def _put_new(self, item: dict[str, Any]) -> bool:
        try:
            await self._calls.call(
                "put_item",
                Item=item,
                ConditionExpression="attribute_not_exists(#pk)",
                ExpressionAttributeNames={"#pk": PARTITION_KEY},
            )
        except ConditionRefusedError:
            return False
        return True

    async def _write(self, key: LeaseKey, update: Update) -> Lease | None:
        try:
            answer = await self._calls.call(
                "update_item", Key=row_key(key), ReturnValues="ALL_NEW", **update.parameters()
            )
        except ConditionRefusedError:
            return None
        return self._lease(answer["Attributes"])

    async def _read(self, key: LeaseKey) -> Lease | None:
        answer = await self._calls.call("get_item", Key=row_key(key), ConsistentRead=True)
        return self._lease(answer["Item"]) if "Item" in answer else None

    def _lease(self, item: Item) -> Lease | None:
        try:
            return lease_of(item)
        except ForeignRowError as error:
            self._warn(item, error)
            return None

    def _warn(self, item: Item, error: ForeignRowError) -> None:
        key = item[PARTITION_KEY]["S"], item[SORT_KEY]["S"]
        if key not in self._warned:
            self._warned.add(key)
            _LOG.warning(
                "table %s: the row %s, %s is not a lease of Headrace and is ignored: %s",
                self._table,
                *key,
                error,
            )
