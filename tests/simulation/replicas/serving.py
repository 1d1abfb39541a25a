"""A process as the leader: it answers the fetches of followers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace.core.replica.divergence import find_divergence
from headrace.core.replica.following import Fetched, Position
from headrace.core.replica.isr import NOTHING_KNOWN, Isr
from tests.simulation.replicas.disk import Key
from tests.simulation.replicas.fetching import WAIT_MS, Answer, Fetch
from tests.simulation.replicas.partition import SimPartition

if TYPE_CHECKING:
    from tests.simulation.replicas.process import Process


class Serving:
    """The fetches of followers that a process handles, as `broker/replication/follower_fetches.py` does."""

    def __init__(self, process: Process) -> None:
        """Begin without requests that wait."""
        self._process = process
        self._parked: dict[Fetch, None] = {}
        """The requests that wait for news."""

    def handle(self, fetch: Fetch) -> None:
        """Note the progress of a follower, and answer now or when there is news."""
        is_repeated, fetch.is_handled = fetch.is_handled, True
        answers = [self._read(fetch, *each, is_first=True) for each in fetch.positions]
        if is_repeated:  # a fetch session would refuse it; the replicas have to bear it
            for key, _ in fetch.positions:
                isr = self._process.partitions[key].isr if key in self._process.partitions else None
                if isr is not None and isr.is_follower(fetch.follower):
                    isr.reported(fetch.follower, NOTHING_KNOWN)
            return
        if fetch.is_full or any(answers):
            self._respond(fetch, answers)
        else:
            self._parked[fetch] = None
            self._process.after(WAIT_MS, partial(self._unpark, fetch))

    def _unpark(self, fetch: Fetch) -> None:
        if fetch in self._parked:
            del self._parked[fetch]
            self._respond(fetch, [self._read(fetch, *each) for each in fetch.positions])

    def moved(self) -> None:
        """Answer the requests that wait for what has changed."""
        for fetch in list(self._parked):
            answers = [self._read(fetch, *each) for each in fetch.positions]
            if any(answers):
                del self._parked[fetch]
                self._respond(fetch, answers)

    def _respond(self, fetch: Fetch, answers: list[Answer | None]) -> None:
        found = [answer for answer in answers if answer is not None]
        sender = fetch.loop.process
        self._process.simulation.network.reply(
            self._process, sender, lambda: fetch.loop.received(fetch, found)
        )

    def _read(
        self, fetch: Fetch, key: Key, position: Position, *, is_first: bool = False
    ) -> Answer | None:
        """Return what the follower does not know of a partition; None if there is nothing."""
        partition, follower = self._process.partitions.get(key), fetch.follower
        isr = None if partition is None else partition.isr
        if partition is None or isr is None or not isr.is_follower(follower):
            return Answer(key, position, None)
        newest = self._process.membership.epoch_of(follower)
        if position.leader_epoch != partition.leader_epoch or (
            newest is not None and fetch.broker_epoch < newest
        ):
            return Answer(key, position, None)
        log, offset = partition.log, position.fetch_offset
        diverging = find_divergence(log, offset, position.last_fetched_epoch)
        if diverging is not None or offset < log.log_start_offset:
            is_out_of_range = diverging is None
            fetched = Fetched(
                log.high_watermark, log.log_start_offset, diverging, is_out_of_range=is_out_of_range
            )
            return Answer(key, position, fetched)
        if is_first:
            if fetch.is_full:
                isr.reported(follower, NOTHING_KNOWN)
            self._fetched(partition, isr, fetch, position)
        known = (log.high_watermark, log.log_start_offset)
        if log.log_end_offset <= offset and isr.known_to(follower) == known and not fetch.is_full:
            return None
        isr.reported(follower, known)
        records = log.slice(offset, offset + self._process.simulation.knobs.fetched_records)
        return Answer(key, position, Fetched(*known), records)

    def _fetched(self, partition: SimPartition, isr: Isr, fetch: Fetch, position: Position) -> None:
        """Note the progress of a follower, as `Replicas.follower_fetched` does."""
        log = partition.log
        isr.fetched(
            fetch.follower,
            position.fetch_offset,
            log_start_offset=position.log_start_offset,
            broker_epoch=fetch.broker_epoch,
            log_end_offset=log.log_end_offset,
            now_ms=self._process.time.now_ms,
        )
        if position.fetch_offset > log.high_watermark or len(isr.progress.isr) < isr.replicas_count:
            self._process.progressed(partition)
            if fetch.follower not in isr.committed.isr:
                self._process.on_in_sync_change(partition)
