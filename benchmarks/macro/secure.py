"""Measure the cost of TLS, SASL and ACLs on Headrace and Apache Kafka, in turns, with the same certificates and users.

    python -m benchmarks.macro.secure [--rounds N] [--quick] [--page]

Both brokers have their authorizer on and a listener for each protection. On the plaintext listener every client is a
super user. On the last one a user logs in with SCRAM-SHA-512 and has the permissions of ACLs. librdkafka is the client
of both, and speaks TLS 1.3 with the cipher that both sides prefer.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

import headrace
from benchmarks.macro import page, workloads
from benchmarks.macro.compare_kafka import RESULTS, commit, write
from benchmarks.macro.marked_page import ROOT, MarkedPage
from benchmarks.macro.parts import FAILURES
from benchmarks.macro.report import HEADRACE, KAFKA, Results, Row
from benchmarks.macro.servers import Meter, machine
from tests.fixtures.certificates import Certificates, make_certificates
from tests.fixtures.kafka import KAFKA_JVM_OPTIONS
from tests.fixtures.secured_headrace import SecuredHeadrace
from tests.fixtures.secured_kafka import PASSWORD, USER, SecuredKafka

PROTECTIONS = {
    "plaintext": "neither encrypted nor authenticated; a super user",
    "tls": "TLS 1.3; a super user",
    "tls, scram, acls": "TLS 1.3, SCRAM-SHA-512, and access control lists that are asked for every request",
}
LISTENERS = dict(zip(PROTECTIONS, ("PLAINTEXT", "SSL", "SASL_SSL"), strict=True))
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
TOPIC_PREFIX = "secure-"
PAGE = MarkedPage(ROOT / "docs" / "reports" / "security-performance.md", page.tables)


@dataclass(frozen=True)
class Scale:
    """The amount of work of each load."""

    records_100: int
    records_1024: int
    paced: int
    logins: int


FULL = Scale(1_000_000, 500_000, 2_000, 100)
QUICK = Scale(300_000, 100_000, 500, 30)


@contextmanager
def running(
    scratch: Path, certificates: Certificates
) -> Iterator[dict[str, SecuredHeadrace | SecuredKafka]]:
    """Run both brokers for the length of a block, with the ACLs of the user."""
    with ExitStack() as stack:
        mine = SecuredHeadrace(
            scratch / HEADRACE, certificates, further={**AUTHORIZER, "durability": "os"}
        )
        theirs = SecuredKafka(
            scratch / KAFKA, certificates, further=AUTHORIZER, jvm_options=KAFKA_JVM_OPTIONS
        )
        brokers: dict[str, SecuredHeadrace | SecuredKafka] = {HEADRACE: mine, KAFKA: theirs}
        for broker in brokers.values():
            stack.callback(broker.stop)
            broker.start()
            _allow(broker.bootstraps["PLAINTEXT"])
        yield brokers


def _allow(bootstrap: str) -> None:
    rights = [
        AclBinding(
            kind, name, pattern, f"User:{USER}", "*", AclOperation.ALL, AclPermissionType.ALLOW
        )
        for kind, name, pattern in (
            (ResourceType.TOPIC, TOPIC_PREFIX, ResourcePatternType.PREFIXED),
            (ResourceType.GROUP, "*", ResourcePatternType.LITERAL),
        )
    ]
    # ACLs of other users, as on a broker that a team shares.
    rights += [
        AclBinding(
            ResourceType.TOPIC,
            f"other-{number}",
            ResourcePatternType.LITERAL,
            f"User:somebody-{number}",
            "*",
            AclOperation.READ,
            AclPermissionType.ALLOW,
        )
        for number in range(200)
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap, **workloads.QUIET})
    for future in admin.create_acls(rights).values():
        future.result(30)


def properties(protection: str, certificates: Certificates) -> dict[str, str]:
    """Return librdkafka's properties, which Headrace's client also accepts."""
    listener = LISTENERS[protection]
    found = {"security.protocol": listener}
    if listener != "PLAINTEXT":
        found["ssl.ca.location"] = str(certificates.authority)
    if listener.startswith("SASL"):
        found |= {
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }
    return found


@dataclass
class Loads:
    """All loads on one listener of one broker."""

    target: str
    protection: str
    bootstrap: str
    plain: str
    security: Mapping[str, str]
    meter: Meter
    scale: Scale
    results: Results

    def note(self, case: str, metric: str, value: float) -> None:
        """Store one value of a metric."""
        self.results.note(Row(self.protection, case, metric), self.target, value)

    def run(self) -> None:
        """Run all loads in turn."""
        for record_bytes, records in (
            (100, self.scale.records_100),
            (1024, self.scale.records_1024),
        ):
            topic = self._topic()
            sized = {"records": records, "record_bytes": record_bytes, "security": self.security}
            self._measured(f"produce, {record_bytes} B", topic, acks="1", **sized)
            self._measured(f"consume, {record_bytes} B", topic, **sized)
            workloads.delete_topic(self.plain, topic)
        self._latency()
        self._logins()

    def _topic(self) -> str:
        topic = f"{TOPIC_PREFIX}{time.monotonic_ns()}"
        workloads.create_topic(self.plain, topic)
        return topic

    def _measured(self, case: str, topic: str, **arguments: Any) -> None:
        producing = case.startswith("produce")
        load = workloads.librdkafka_produce if producing else workloads.librdkafka_consume
        self.meter.reset()
        run = load(self.bootstrap, topic, **arguments)
        cost = self.meter.cost()
        self.note(case, "records/s", run.records_per_s)
        self.note(case, "broker CPU s/GB", cost.cpu_s / run.megabytes * 1000)

    def _latency(self) -> None:
        topic = self._topic()
        found = workloads.paced_latency(
            self.bootstrap,
            topic,
            records=self.scale.paced,
            record_bytes=100,
            acks="all",
            records_per_s=500,
            security=self.security,
        )
        for metric, value in found.items():
            self.note("produce one by one, 500 a second", metric, value)
        workloads.delete_topic(self.plain, topic)

    def _logins(self) -> None:
        """Open connections in turn with Headrace's client, which does the same work for both brokers."""
        logging_in: dict[str, Any] = dict(self.security)
        self.meter.reset()
        begun = time.perf_counter()
        for _ in range(self.scale.logins):
            with headrace.Admin(self.bootstrap, **logging_in) as admin:
                admin.topics()
        elapsed = time.perf_counter() - begun
        self.note("connect", "connections/s", self.scale.logins / elapsed)
        cpu_ms = self.meter.cost().cpu_s / self.scale.logins * 1000
        self.note("connect", "broker CPU ms/connection", cpu_ms)


def run_round(number: int, scale: Scale, results: Results) -> None:
    """Run one round: all protections on both brokers, in turns."""
    scratch = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        certificates = make_certificates(scratch / "certificates")
        with running(scratch, certificates) as brokers:
            for warm in (True, False):
                for protection in PROTECTIONS:
                    for target in (HEADRACE, KAFKA)[:: 1 if number % 2 == 0 else -1]:
                        print(f"  {protection}, {target}", file=sys.stderr, flush=True)
                        where = brokers[target].bootstraps
                        Loads(
                            target,
                            protection,
                            where[LISTENERS[protection]],
                            where["PLAINTEXT"],
                            properties(protection, certificates),
                            Meter(brokers[target].pid),
                            QUICK if warm else scale,
                            Results() if warm else results,
                        ).run()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def main() -> int:
    """Run the comparison and write its results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small loads, for a first look")
    parser.add_argument(
        "--page", action="store_true", help="write docs/reports/security-performance.md as well"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the results go")
    arguments = parser.parse_args()
    begun = datetime.now(UTC)
    facts: dict[str, Any] = {
        "date": begun.strftime("%Y-%m-%d"),
        "commit": commit(),
        "kafka": "4.3.0",
        "rounds": arguments.rounds,
        "machine": machine(),
        "presets": PROTECTIONS,
        "peers": {},
    }
    results = Results()
    for number in range(arguments.rounds):
        print(f"round {number + 1} ...", file=sys.stderr, flush=True)
        try:
            run_round(number, QUICK if arguments.quick else FULL, results)
        except FAILURES as error:  # earlier measurements are kept
            results.fail(f"round {number + 1} did not end: {error}"[:300])
            print(f"  {error}", file=sys.stderr, flush=True)
    facts["minutes"] = round((datetime.now(UTC) - begun).total_seconds() / 60, 1)
    stem = f"secure-{facts['date']}-{facts['commit']}{'-quick' if arguments.quick else ''}"
    write(arguments.output, stem, facts, results)
    print((arguments.output / f"{stem}.md").read_text())
    if arguments.page:
        PAGE.write(arguments.output / f"{stem}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
