"""Kafka's own Java client, through its verifiable producer and consumer and its command-line tools."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from itertools import count as counter
from pathlib import Path
from typing import cast

from tests.conformance.clients.peer import Peer
from tests.conformance.clients.programs.common import HEARTBEAT_MS, SESSION_TIMEOUT_MS
from tests.conformance.clients.scenario import Acknowledged, Load, Member
from tests.fixtures import client_security
from tests.fixtures.client_security import NO_SECURITY, Properties
from tests.fixtures.history.members import Event, History
from tools.fetch_java import java_command, kafka_class_path

RUN_TIMEOUT_S = 60
LOAD_RECORDS_PER_S = 300
SINCE_1970_NS = time.time_ns() - time.monotonic_ns()
"""The difference between the clock in the JVM's output and the monotonic clock, in nanoseconds."""
VALUE_BASE = 1_000_000  # numbers of one producer run: one prefix of values each
TOOLS = {
    "acls": "AclCommand",
    "topics": "TopicCommand",
    "groups": "consumer.group.ConsumerGroupCommand",
    "console-producer": "ConsoleProducer",
    "console-consumer": "consumer.ConsoleConsumer",
    "get-offsets": "GetOffsetShell",
    "configs": "kafka.admin.ConfigCommand",
    "broker-api-versions": "BrokerApiVersionsCommand",
    "delete-records": "DeleteRecordsCommand",
    "log-dirs": "LogDirsCommand",
    "leader-election": "LeaderElectionCommand",
    "reassign-partitions": "reassign.ReassignPartitionsCommand",
    "metadata-quorum": "MetadataQuorumCommand",
    "features": "FeatureCommand",
    "transactions": "TransactionsCommand",
    "verifiable-producer": "VerifiableProducer",
    "verifiable-consumer": "VerifiableConsumer",
}


def tool_command(tool: str) -> list[str]:
    """Return the begin of the command line of one of Kafka's tools."""
    name = TOOLS[tool]
    main_class = name if name.startswith("kafka.") else f"org.apache.kafka.tools.{name}"
    options = ["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    options += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    return [java_command(), *options, "-cp", kafka_class_path(), main_class]


def in_properties(value: object) -> str:
    """Return a value in the ASCII form that Java reads from a properties file."""
    return json.dumps(str(value))[1:-1].replace('\\"', '"')


def translate(line: str) -> tuple[str, Mapping[str, object]] | None:
    """Translate an event of a verifiable producer or consumer to the form of our own programs."""
    if not line.startswith("{"):
        return None
    said = json.loads(line)
    kind = said["name"]
    if (said_ms := said.get("timestamp")) is not None:
        # Two threads read the lines of two members: which of them comes first says nothing, the clock of both does.
        said["at_ns"] = said_ms * 1_000_000 - SINCE_1970_NS
    stamp = {"at_ns": said.get("at_ns")}
    if kind == "records_consumed":  # a summary of the records, which are said one by one as well
        return None
    if kind in ("partitions_assigned", "partitions_revoked"):
        owned = [each["partition"] for each in said["partitions"]]
        return kind.removeprefix("partitions_"), {"partitions": owned, **stamp}
    if kind == "record_data":
        row = [said["partition"], said["offset"], said["value"]]
        return "records", {"records": [row], **stamp}
    if kind == "offsets_committed":
        offsets = {each["partition"]: each["offset"] for each in said["offsets"]}
        return ("committed" if said["success"] else "commit_failed"), {"offsets": offsets, **stamp}
    if kind == "producer_send_success":
        said["row"] = [said["value"], said["partition"], said["offset"]]
    return {"producer_send_success": "sent", "producer_send_error": "error"}.get(kind, kind), said


class JavaMember:
    """A VerifiableConsumer of Kafka's Java tools, as a member of a group."""

    def __init__(self, peer: Peer, history: History) -> None:
        self.name, self._peer, self._history = peer.name, peer, history

    def leave(self) -> None:
        self._peer.close(signal.SIGTERM)
        self._history.add(self.name, "left", {})

    def kill(self) -> None:
        self._peer.kill()
        self._history.add(self.name, "killed", {})


class JavaLoad:
    """A VerifiableProducer that runs until it is stopped; bursts are runs of their own."""

    def __init__(self, client: JavaClient, topic: str) -> None:
        self._client, self._topic = client, topic
        self._sent = History()
        self._lock = threading.Lock()
        self._burst: Acknowledged = []
        self._peer: Peer | None = client.producer(
            topic,
            "0",
            self._sent,
            *("--throughput", str(LOAD_RECORDS_PER_S)),
            compression_type="lz4",
            enable_idempotence="true",
            # At this rate the default stays with one partition for many seconds.
            partitioner_class="org.apache.kafka.clients.producer.RoundRobinPartitioner",
        )

    @property
    def acknowledged(self) -> Acknowledged:
        """Return the numbers that are acknowledged so far."""
        return sent_rows(self._sent.events()) + self._burst

    def stop(self) -> None:
        """Stop the producer, which flushes its records."""
        if self._peer is not None:
            self._peer.close(signal.SIGTERM)
            self._peer = None

    def burst(self) -> None:
        """Produce the next records."""
        self._burst += self._client.produce(self._topic, 0, VALUE_BASE, 60, "lz4", idempotent=True)


def sent_rows(events: Sequence[Event]) -> Acknowledged:
    """Return (n, partition, offset) from the events of a verifiable producer."""
    rows = []
    for event in events:
        if event.kind == "sent":
            value, partition, offset = cast("tuple[str, int, int]", event.fields["row"])
            prefix, number = value.split(".")
            rows.append((int(prefix) * VALUE_BASE + int(number), partition, offset))
    return rows


class JavaClient:
    """A client that starts one JVM for each operation."""

    name = "java"
    chooses_partitions = False
    carries_headers = False
    tells_commits = True
    outlives_brokers = True

    def __init__(
        self, bootstrap: str, directory: Path, properties: Properties = NO_SECURITY
    ) -> None:
        self._bootstrap, self._directory = bootstrap, directory
        self._files = counter()
        if "token" in properties:
            kept = directory / f"token-{uuid.uuid4()}"
            kept.write_text(properties["token"])
            properties = {**properties, "token.file": str(kept)}
        self._security = client_security.java(properties)
        kafka_class_path()  # raises before the first test, not in it

    def run(self, tool: str, *arguments: str, text: str = "", check: bool = True) -> str:
        """Run a tool to its end, and return its output.

        Raises:
            AssertionError: It failed.
        """
        secured = self._settings() if self._security else ()
        done = subprocess.run(
            [*self._command(tool), *arguments, *secured],
            input=text,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        assert not check or done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"[-3000:]
        return done.stdout + ("" if check else done.stderr)

    def _command(self, tool: str) -> list[str]:
        command = [*tool_command(tool), "--bootstrap-server", self._bootstrap]
        url = self._security.get("sasl.oauthbearer.token.endpoint.url")
        if url is not None:  # the client reads no file that the system has not allowed
            allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}"
            command.insert(1, allowed)
        return command

    def _settings(self, **settings: object) -> list[str]:
        path = self._directory / f"java-{next(self._files)}.properties"
        lines = {"reconnect.backoff.max.ms": 100, "retry.backoff.ms": 50} | {
            key.replace("_", "."): value for key, value in settings.items()
        }
        lines |= self._security
        path.write_text("".join(f"{key}={in_properties(value)}\n" for key, value in lines.items()))
        return ["--command-config", str(path)]

    def create_topic(self, topic: str, partitions: int) -> None:
        self.run("topics", "--create", "--topic", topic, "--partitions", str(partitions))

    def producer(
        self, topic: str, prefix: str, history: History, *arguments: str, **settings: object
    ) -> Peer:
        """A VerifiableProducer whose values are `prefix.0`, `prefix.1`, ...; by itself it would not retry."""
        command = self._command("verifiable-producer")
        command += ["--topic", topic, "--value-prefix", prefix, *arguments]
        return Peer(
            f"producer-{prefix}",
            [*command, *self._settings(retries=1_000_000, **settings)],
            directory=self._directory,
            history=history,
            translate=translate,
        )

    def produce(
        self, topic: str, partitions: int, first: int, count: int, codec: str, *, idempotent: bool
    ) -> Acknowledged:
        history = History()
        peer = self.producer(
            topic,
            str(first // VALUE_BASE),
            history,
            *("--max-messages", str(count)),
            compression_type=codec,
            enable_idempotence=str(idempotent).lower(),
        )
        try:
            peer.wait("tool_data")
        except BaseException:
            peer.kill()
            raise
        peer.close()
        return sent_rows(history.events())

    def consume(self, topic: str, partitions: int, count: int) -> list[Sequence[object]]:
        printed = ("partition", "offset", "key")
        formats = [w for each in printed for w in ("--formatter-property", f"print.{each}=true")]
        output = self.run(
            "console-consumer",
            *("--topic", topic, "--from-beginning", "--max-messages", str(count), *formats),
        )
        rows: list[Sequence[object]] = []
        for line in output.splitlines():
            if line.startswith("Partition:"):
                partition, offset, _, value = line.split("\t")
                number = int(partition.split(":")[1]), int(offset.split(":")[1])
                rows.append((*number, value.split(".")[1], value))
        return rows

    def member(self, name: str, group: str, topic: str, history: History) -> Member:
        command = self._command("verifiable-consumer")
        command += ["--group-id", group, "--topic", topic, "--verbose"]
        command += ["--session-timeout", str(SESSION_TIMEOUT_MS)]
        settings = self._settings(
            client_id=name, heartbeat_interval_ms=HEARTBEAT_MS, fetch_max_wait_ms=100
        )
        peer = Peer(
            name,
            [*command, *settings],
            directory=self._directory,
            history=history,
            translate=translate,
        )
        return JavaMember(peer, history)

    def value_of(self, number: int) -> str:
        return f"{number // VALUE_BASE}.{number % VALUE_BASE}"

    def load(self, topic: str) -> Load:
        return JavaLoad(self, topic)

    def close(self) -> None:
        pass
