"""The conditions after a run: the output has each input record once and in order, and no client read other records."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Message

from tests.chaos.feeding import INPUT, OUTPUT, read_all
from tests.fixtures.history.checker import check
from tests.fixtures.history.operations import INVOKE, read_operations

UNEXPECTED = ("error", "critical")


class OutputCheck:
    """Reads both topics and the histories of all clients."""

    def __init__(self, bootstrap: str, journals: Path, sent: list[int]) -> None:
        self._bootstrap, self._journals, self._sent = bootstrap, journals, sent
        self.counts: Counter[str] = Counter()
        self.drained_in_s = 0.0
        self.input = self._read(INPUT)
        for number, messages in self.input.items():
            numbers = [int(_text(message).split(":")[1]) for message in messages]
            assert numbers == list(range(sent[number])), f"input {number}: {_difference(numbers)}"
        self.counts["records"] = sum(map(len, self.input.values()))

    def _read(self, topic: str) -> dict[int, list[Message]]:
        return read_all(self._bootstrap, topic, self._journals / f"reader-{topic}.jsonl")

    def wanted_positions(self) -> dict[int, int]:
        """The committed offsets of a finished group: behind the last record of each partition."""
        return {
            number: messages[-1].offset() + 1 for number, messages in self.input.items() if messages
        }

    def check_records(self) -> None:
        """Compare the output with the input."""
        found, wanted = _by_key(self._read(OUTPUT)), _by_key(self.input)
        times = Counter(value for values in found.values() for value in values)
        twice = [(each, times[each]) for each in times if times[each] > 1]
        lost = [each for values in wanted.values() for each in values if each not in times]
        other = [key for key in wanted | found if wanted.get(key) != found.get(key)]
        assert not other, (
            f"the output is not the input: {self.counts['records']} in, {times.total()} out; "
            f"more than once: {twice[:5]}; lost: {lost[:5]}; keys in another order: {other[:5]}"
        )

    def check_history(self) -> None:
        """Run the history checker on the journals of all clients."""
        operations = read_operations(self._journals.glob("*.jsonl"))
        for operation in operations:
            if operation.f == "txn" and operation.process.startswith("w"):
                self.counts[f"transactions {operation.type}"] += 1
        self.counts["operations"] = sum(each.type == INVOKE for each in operations)
        anomalies = check(operations)
        kinds = Counter(anomaly.kind for anomaly in anomalies)
        assert not anomalies, f"{dict(kinds)}: {anomalies[:5]}"

    def check_log(self, log: str) -> None:
        """Check that the broker has logged no error."""
        lines = [line for line in log.splitlines() if line.startswith("{")]
        bad = [line for line in lines if json.loads(line)["level"].lower() in UNEXPECTED]
        assert not bad, f"the broker's log has errors: {bad[:3]}"
        assert "Traceback" not in log


def _by_key(messages: Mapping[int, list[Message]]) -> dict[bytes, list[str]]:
    """The values of each key, without what the worker's attempt has added, in the order of the log."""
    found: dict[bytes, list[str]] = defaultdict(list)
    for partition in messages.values():
        for message in partition:
            found[message.key()].append(_text(message).split("|")[0])
    return found


def _text(message: Message) -> str:
    return str(message.value().decode())


def _difference(numbers: list[int]) -> str:
    first = next((n for n, number in enumerate(numbers) if n != number), len(numbers))
    return f"{len(numbers)} records, from {first} on: {numbers[first : first + 5]}"
