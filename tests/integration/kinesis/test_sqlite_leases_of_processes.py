"""An SQLite file of leases that many processes use at the same time. Some processes are killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from headrace.core.lease.checkpoint import TRIM_HORIZON
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.kinesis.leases.sqlite import SqliteLeaseStore

KEY = LeaseKey("billing", "orders@1", "shardId-000000000000")
PROCESSES = 6
ROUNDS = 40

# Every process creates the file, then takes the lease whenever it can, and prints each epoch that it got.
PROGRAM = """
import asyncio, sys
from pathlib import Path
from headrace.core.lease.checkpoint import TRIM_HORIZON
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.kinesis.leases.sqlite import SqliteLeaseStore

async def main(path, owner, rounds):
    store = SqliteLeaseStore(Path(path), busy_timeout_ms=60_000)
    sys.stdin.readline()
    await store.open()
    key = LeaseKey("billing", "orders@1", "shardId-000000000000")
    await store.create(Lease(key=key, checkpoint=TRIM_HORIZON))
    while True:
        (seen,) = await store.leases(key.group, key.stream)
        if seen.epoch >= rounds:
            return
        taken = await store.take(seen, owner)
        if taken is not None:
            print(taken.epoch, flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def start(path: Path, owner: str, rounds: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), owner, str(rounds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def test_each_epoch_belongs_to_one_process(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    processes = [start(path, f"process {number}", ROUNDS) for number in range(PROCESSES)]
    for process in processes:
        begin(process)
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES
    epochs = sorted(int(line) for output in outputs for line in output.splitlines())
    assert epochs == list(range(1, len(epochs) + 1))
    assert len(epochs) >= ROUNDS


def test_a_killed_process_leaves_an_intact_file(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    epochs: list[int] = []
    for number in range(5):
        process = start(path, f"process {number}", sys.maxsize)
        begin(process)
        assert process.stdout is not None
        epochs += [int(process.stdout.readline()) for _ in range(10)]
        process.kill()
        epochs += [int(line) for line in process.stdout.read().splitlines()]
        process.communicate()

    async def read() -> Lease:
        store = SqliteLeaseStore(path)
        await store.open()
        assert not await store.create(Lease(key=KEY, checkpoint=TRIM_HORIZON))
        (lease,) = await store.leases(KEY.group, KEY.stream)
        await store.close()
        return lease

    lease = asyncio.run(read())
    assert epochs == sorted(set(epochs))
    # Every printed epoch is stored. For each kill one more epoch may be stored that was not printed.
    assert epochs[-1] <= lease.epoch <= len(epochs) + 5
