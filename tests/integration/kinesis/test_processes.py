"""Workers in processes of their own with kinesis-local and dynalite: joins, resharding, a leave, a kill, a halt."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.core.lease.lease import Lease
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.client.settings import AwsSettings
from headrace.kinesis.leases.opening import open_store
from tests.integration.kinesis.servers import REGION, dummy_aws

PROGRAM = Path(__file__).parent / "programs/worker.py"
LEASE_MS = 3_000
WAIT_S = 60.0


class Company:
    """A stream, a thread that writes to it all the time, and workers in processes."""

    def __init__(self, kinesis_url: str, dynamodb_url: str, directory: Path) -> None:
        self.stream = f"orders-{uuid.uuid4().hex[:8]}"
        self.table = f"leases-{uuid.uuid4().hex[:8]}"
        self._urls = {"kinesis_url": kinesis_url, "dynamodb_url": dynamodb_url}
        self._aws = {name: dummy_aws(url) for name, url in self._urls.items()}
        self._ledger = directory / "ledger"
        self._ledger.touch()
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.sent: list[str] = []
        self._writing = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)

    # Kinesis

    def call(self, operation: str, **arguments: Any) -> Any:
        async def once() -> Any:
            async with open_client(self._aws["kinesis_url"], "kinesis") as client:
                return await getattr(client, operation)(StreamName=self.stream, **arguments)

        return asyncio.run(once())

    def begin(self, shards: int) -> None:
        self.call("create_stream", ShardCount=shards)
        self.wait_until_active()
        self._writing.set()
        self._writer.start()

    def wait_until_active(self) -> None:
        def active() -> bool:
            summary = self.call("describe_stream_summary")["StreamDescriptionSummary"]
            return bool(summary["StreamStatus"] == "ACTIVE")

        self.wait(active, "the stream is active")

    def _write(self) -> None:
        asyncio.run(self._put_all())

    async def _put_all(self) -> None:
        async with open_client(self._aws["kinesis_url"], "kinesis") as client:
            while self._writing.is_set():
                values = [str(len(self.sent) + number) for number in range(4)]
                records = [{"Data": value.encode(), "PartitionKey": value} for value in values]
                answer = await client.put_records(StreamName=self.stream, Records=records)
                assert not answer["FailedRecordCount"]
                self.sent += values
                await asyncio.sleep(0.1)

    def stop_writing(self) -> None:
        self._writing.clear()
        self._writer.join()

    # Workers

    def start(self, name: str, throttled: float = 0.1) -> None:
        settings = {
            "name": name,
            "stream": self.stream,
            "table": self.table,
            "ledger": str(self._ledger),
            "lease_ms": LEASE_MS,
            "throttled": throttled,
            **self._urls,
        }
        keys = {"AWS_ACCESS_KEY_ID": "dummy", "AWS_SECRET_ACCESS_KEY": "dummy"}
        self.processes[name] = subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(settings)],
            env={**os.environ, **keys},
            stderr=subprocess.PIPE,
            text=True,
        )

    def signal(self, name: str, number: int) -> None:
        self.processes[name].send_signal(number)

    def leave(self, name: str) -> None:
        self.signal(name, signal.SIGTERM)
        message = self.processes.pop(name).communicate(timeout=30)[1]
        assert any(entry["kind"] == "left" for entry in self.entries(name)), message

    def end(self) -> None:
        self._writing.clear()
        for process in self.processes.values():
            process.kill()
            process.communicate()

    # Records of each process

    def entries(self, name: str | None = None) -> list[dict[str, Any]]:
        lines = self._ledger.read_text().splitlines()
        found: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [entry for entry in found if name is None or entry["worker"] == name]

    def handled(self, name: str | None = None) -> list[dict[str, Any]]:
        return [entry for entry in self.entries(name) if entry["kind"] == "begun"]

    def shards_since(self, at: float, name: str) -> set[str]:
        return {entry["shard"] for entry in self.handled(name) if entry["at"] > at}

    def leases(self) -> dict[str, Lease]:
        async def read() -> dict[str, Lease]:
            aws = AwsSettings(region=REGION, access_key_id="dummy", secret_access_key="dummy")
            store = open_store(
                f"dynamodb://{self.table}?endpoint_url={self._urls['dynamodb_url']}", aws
            )
            await store.open()
            try:
                [(group, stream)] = await store.streams()
                return {lease.key.shard: lease for lease in await store.leases(group, stream)}
            finally:
                await store.close()

        return asyncio.run(read())

    def wait(self, condition: Callable[[], bool], what: str, limit_s: float = WAIT_S) -> None:
        give_up = time.monotonic() + limit_s
        while not condition():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise AssertionError(f"{name} ended: {process.communicate()[1]}")
            assert time.monotonic() < give_up, f"{what}, it was hoped for"
            time.sleep(0.1)

    def wait_for_all(self) -> None:
        def all_handled() -> bool:
            return {entry["value"] for entry in self.handled()} >= set(self.sent)

        self.wait(all_handled, "all records are handled")


@pytest.fixture
def company(kinesis_url: str, dynamodb_url: str, tmp_path: Path) -> Iterator[Company]:
    company = Company(kinesis_url, dynamodb_url, tmp_path)
    try:
        yield company
    finally:
        company.end()


def check_ledger(company: Company, checkpoints: list[dict[str, Lease]], gone: set[str]) -> None:
    """No record is lost, an epoch never follows a higher one, and records are repeated only behind a checkpoint."""
    handled = sorted(company.handled(), key=lambda entry: entry["at"])
    assert {entry["value"] for entry in handled} == set(company.sent)
    by_shard: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    by_value: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in handled:
        by_shard[entry["shard"]].append(entry)
        by_value[entry["value"]].append(entry)
    for shard, entries in by_shard.items():
        epochs = [entry["epoch"] for entry in entries]
        assert epochs == sorted(epochs), f"{shard} had two owners at a time"
        owners = {(entry["epoch"], entry["worker"]) for entry in entries}
        assert len(owners) == len(set(epochs)), f"{shard} had two owners of one epoch"
    for entries in by_value.values():
        for earlier in entries[:-1]:
            assert earlier["worker"] in gone, "what came twice was handled by one who was there"
            known = [each[earlier["shard"]] for each in checkpoints if earlier["shard"] in each]
            stored = [lease.checkpoint for lease in known if lease.checkpoint.is_sequence_number]
            assert any(
                int(earlier["sequence_number"]) > int(checkpoint.position) for checkpoint in stored
            ) or len(stored) < len(known), "what was checkpointed came again"


def test_processes_lose_no_record_and_no_shard_has_two_owners(company: Company) -> None:
    company.begin(shards=4)
    company.start("a")
    company.wait(lambda: len(company.handled("a")) > 20, "a handles records")

    for name in ("b", "c"):
        company.start(name)
    company.wait(lambda: all(company.handled(name) for name in "bc"), "b and c have shards, too")

    shards = company.call("list_shards")["Shards"]
    keys = shards[0]["HashKeyRange"]
    middle = (int(keys["StartingHashKey"]) + int(keys["EndingHashKey"])) // 2
    company.call("split_shard", ShardToSplit=shards[0]["ShardId"], NewStartingHashKey=str(middle))
    company.wait_until_active()
    company.call(
        "merge_shards",
        ShardToMerge=shards[2]["ShardId"],
        AdjacentShardToMerge=shards[3]["ShardId"],
    )
    children = {f"shardId-{number:012d}" for number in (4, 5, 6)}
    company.wait(
        lambda: children <= {entry["shard"] for entry in company.handled()},
        "the shards that came of a split and of a merge are read",
    )

    company.leave("c")

    company.signal("b", signal.SIGKILL)
    killed_at = time.monotonic()
    company.processes.pop("b").communicate()
    at_kill = company.leases()
    company.wait(lambda: len(company.shards_since(killed_at, "a")) >= 4, "a has the shards of b")

    company.start("d")
    company.wait(lambda: bool(company.handled("d")), "d has shards")
    company.signal("a", signal.SIGSTOP)
    halted_at = time.monotonic()
    at_halt = company.leases()
    company.wait(lambda: len(company.shards_since(halted_at, "d")) >= 4, "d has the shards of a")
    company.signal("a", signal.SIGCONT)
    company.stop_writing()
    company.wait_for_all()
    for name in ("a", "d"):
        company.leave(name)

    check_ledger(company, [at_kill, at_halt], {"a", "b"})
    counts = Counter(entry["value"] for entry in company.handled())
    print(f"{len(company.sent)} sent, {sum(counts.values()) - len(counts)} handled twice")
