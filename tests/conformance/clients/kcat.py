"""kcat as a client of the scenario: it has no admin calls, creates topics automatically, and commits by itself."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conformance.clients.observer import wait_until
from tests.conformance.clients.peer import Peer
from tests.conformance.clients.programs.common import HEARTBEAT_MS, SESSION_TIMEOUT_MS, value_of
from tests.conformance.clients.scenario import Acknowledged, BurstLoad, Load, Member
from tests.fixtures.client_security import NO_SECURITY, Properties, librdkafka
from tests.fixtures.history.members import History

RUN_TIMEOUT_S = 40
_DELIVERED = re.compile(r"Message delivered to partition (\d+) \(offset (\d+)\)")
_REBALANCED = re.compile(r"% Group \S+ rebalanced .*?: (assigned|revoked): (.*)")
_PARTITION = re.compile(r"\[(\d+)\]")
FORMAT = '{"p":%p,"o":%o,"k":"%k","s":"%s"}\n'


def find_kcat() -> str | None:
    """Return the kcat command, if it is installed."""
    return shutil.which("kcat") or shutil.which("kafkacat")


def without_scram(properties: Properties) -> dict[str, str]:
    """Return the same login with PLAIN in place of SCRAM.

    librdkafka before 2.6.1, which Debian's kcat carries, sends a nonce by SCRAM that is not the exchange's. Kafka
    refuses it since version 4, and so does Headrace.
    """
    mechanism = properties.get("sasl.mechanism", "")
    return {**properties, **({"sasl.mechanism": "PLAIN"} if mechanism.startswith("SCRAM") else {})}


def translate(line: str) -> tuple[str, Mapping[str, object]] | None:
    """Return the event of a line: a record on standard output, or a rebalance on standard error."""
    if line.startswith("{"):
        row = json.loads(line)
        return "records", {"records": [[row["p"], row["o"], row["s"]]]}
    if match := _REBALANCED.match(line):
        kind, partitions = match.groups()
        return kind, {"partitions": [int(each) for each in _PARTITION.findall(partitions)]}
    return None


class KcatMember:
    """`kcat -G`: a member that commits by itself."""

    def __init__(self, peer: Peer, history: History) -> None:
        self.name, self._peer, self._history = peer.name, peer, history

    def leave(self) -> None:
        self._peer.close(signal.SIGTERM)

    def kill(self) -> None:
        self._peer.kill()
        self._history.add(self.name, "killed", {})


class Kcat:
    """A client that starts one process for each operation."""

    name = "kcat"
    chooses_partitions = True
    carries_headers = False
    tells_commits = False
    outlives_brokers = False
    drops_when_stopped = True
    """A stopped kcat takes one more record from librdkafka.

    The record counts as consumed, and kcat does not print it.
    """

    def __init__(
        self,
        command: str,
        bootstrap: str,
        directory: Path,
        properties: Properties = NO_SECURITY,
    ) -> None:
        settings = {"reconnect.backoff.max.ms": "100", **librdkafka(properties)}
        # In a file: -X takes a comma for the end of a value.
        with tempfile.NamedTemporaryFile("w", dir=directory, suffix=".conf", delete=False) as file:
            file.writelines(f"{name}={value}\n" for name, value in settings.items())
        self._command = [command, "-F", file.name, "-b", bootstrap]
        self._directory = directory

    def run(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run kcat to its end.

        Raises:
            AssertionError: It failed.
        """
        done = subprocess.run(
            [*self._command, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"kcat {arguments}: {done.stderr[-1000:]}"
        return done

    def create_topic(self, topic: str, partitions: int) -> None:
        """Request metadata of a topic until the broker has created it automatically."""
        wait_until(
            f"auto-creation of {topic}",
            lambda: f'topic "{topic}" with 6 partitions' in self.run("-L", "-t", topic).stdout,
        )

    def produce(
        self, topic: str, partitions: int, first: int, count: int, codec: str, *, idempotent: bool
    ) -> Acknowledged:
        acknowledged: Acknowledged = []
        for partition in range(partitions):
            numbers = [n for n in range(first, first + count) if n % partitions == partition]
            done = self.run(
                *("-P", "-t", topic, "-p", str(partition), "-K", "\t", "-z", codec, "-vvv"),
                *("-X", f"enable.idempotence={str(idempotent).lower()}", "-X", "acks=all"),
                text="".join(f"{n}\t{value_of(n)}\n" for n in numbers),
            )
            # Reports come in the order sent, for one partition.
            offsets = [int(offset) for _, offset in _DELIVERED.findall(done.stderr)]
            acknowledged += [(n, partition, o) for n, o in zip(numbers, offsets, strict=True)]
        return acknowledged

    def consume(self, topic: str, partitions: int, count: int) -> list[Sequence[object]]:
        done = self.run("-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", FORMAT)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return [(row["p"], row["o"], row["k"], row["s"]) for row in rows]

    def member(self, name: str, group: str, topic: str, history: History) -> Member:
        settings = {
            "client.id": name,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 100,
            "partition.assignment.strategy": "range",
        }
        options = [word for key, value in settings.items() for word in ("-X", f"{key}={value}")]
        peer = Peer(
            name,
            [*self._command, "-G", group, topic, "-u", "-f", FORMAT, *options],
            directory=self._directory,
            history=history,
            translate=translate,
            events_on_stderr=True,
        )
        return KcatMember(peer, history)

    def value_of(self, number: int) -> str:
        return value_of(number)

    def load(self, topic: str) -> Load:
        return BurstLoad(self, topic)

    def close(self) -> None:
        pass
