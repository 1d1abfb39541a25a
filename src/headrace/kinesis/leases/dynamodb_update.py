"""A conditional update of a row, as expressions of DynamoDB."""

from __future__ import annotations

from typing import Any, Self

from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import Lease
from headrace.kinesis.leases.dynamodb_rows import number

Value = dict[str, str]


class Update:
    """The changes of a row and their conditions. Names and values are placeholders: many names are reserved words."""

    def __init__(self) -> None:
        self._sets: list[str] = []
        self._adds: list[str] = []
        self._removes: list[str] = []
        self._conditions: list[str] = []
        self._names: dict[str, str] = {}
        self._values: dict[str, Value] = {}

    def set(self, name: str, value: Value) -> Self:
        """Write an attribute of the row."""
        self._sets.append(f"{self._name(name)} = {self._value('to_' + name, value)}")
        return self

    def add(self, name: str, count: int) -> Self:
        """Add to a number. A missing number counts as 0."""
        self._adds.append(f"{self._name(name)} {self._value('plus_' + name, number(count))}")
        return self

    def remove(self, name: str) -> Self:
        """Remove an attribute from the row."""
        self._removes.append(self._name(name))
        return self

    def checkpoint(self, checkpoint: Checkpoint) -> Self:
        """Write a checkpoint, and reset `switches`."""
        self.set("cp", {"S": checkpoint.position}).set("switches", number(0))
        if checkpoint.sub_sequence is None:
            return self.remove("sub")
        return self.set("sub", number(checkpoint.sub_sequence))

    def when(self, name: str, value: Value) -> Self:
        """Require that an attribute has a value."""
        self._conditions.append(f"{self._name(name)} = {self._value('is_' + name, value)}")
        return self

    def when_below(self, name: str, count: int) -> Self:
        """Require that a number is lower."""
        self._conditions.append(
            f"{self._name(name)} < {self._value('below_' + name, number(count))}"
        )
        return self

    def when_absent_or(self, name: str, value: Value) -> Self:
        """Require that an attribute is missing or has a value."""
        placeholder = self._name(name)
        self._conditions.append(
            f"(attribute_not_exists({placeholder}) OR {placeholder} = {self._value('is_' + name, value)})"
        )
        return self

    def when_owned(self, owner: str, epoch: int) -> Self:
        """Require an owner and an epoch."""
        return self.when("owner", {"S": owner}).when("epoch", number(epoch))

    def when_seen(self, seen: Lease) -> Self:
        """Require the epoch and the beat of a lease."""
        return self.when("epoch", number(seen.epoch)).when("beat", number(seen.beat))

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of UpdateItem."""
        clauses = (("SET", self._sets), ("ADD", self._adds), ("REMOVE", self._removes))
        return {
            "UpdateExpression": " ".join(
                f"{word} {', '.join(parts)}" for word, parts in clauses if parts
            ),
            "ConditionExpression": " AND ".join(self._conditions),
            "ExpressionAttributeNames": self._names,
            "ExpressionAttributeValues": self._values,
        }

    def _name(self, name: str) -> str:
        self._names[f"#{name}"] = name
        return f"#{name}"

    def _value(self, name: str, value: Value) -> str:
        self._values[f":{name}"] = value
        return f":{name}"
