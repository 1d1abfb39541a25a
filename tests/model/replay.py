"""Takes the steps of a walk of the model on `headrace.core.replica` too, and compares both states after each step.

The real objects decide: the leader's `Isr` and high watermark, the divergence of logs, and the follower's `Following`.
The metadata store, the network and the records are those of the model. The model has two brokers.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.log.index.leader_epochs import LeaderEpochCache
from headrace.core.replica.divergence import find_divergence
from headrace.core.replica.following import (
    Append,
    Fetched,
    Following,
    Position,
    Truncate,
    offsets_after,
)
from headrace.core.replica.isr import InSync, Isr, LagLimits
from headrace.core.replica.progress import own_progress
from tests.model.model import Label, Model
from tests.model.state import MEMBERS, UNKNOWN, Replica, Response, State


class Log:
    """The log of a replica of the model, as the real code sees it."""

    def __init__(self, replica: Replica) -> None:
        self.log_start_offset = replica.start
        self.log_end_offset = replica.end
        self.synced_offset = replica.synced
        self.high_watermark = replica.high_watermark
        self._epochs = LeaderEpochCache()
        for offset, epoch in enumerate(replica.log, replica.start):
            self._epochs.assign(epoch, offset)
        if replica.lead is not None:
            self._epochs.assign(replica.epoch, replica.lead.epoch_start)
        self.leader_epoch = self._epochs.latest

    def epoch_at(self, offset: int) -> int:
        return self._epochs.epoch_at(offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self._epochs.end_offset_for(epoch, self.log_end_offset)


@dataclass(frozen=True)
class Live:
    """A live broker, as the image of a leader has it."""

    broker_epoch: int
    is_draining: bool = False


class Replay:
    """The real objects beside the states of a walk."""

    def __init__(self, model: Model) -> None:
        self._bounds = model.bounds
        self._leading: dict[int, Isr] = {}
        self._following: dict[int, Following] = {}
        self._sent: dict[int, Position] = {}
        self.compared = 0
        """The number of high watermarks of leaders that were compared."""

    def take(self, before: State, label: Label, after: State) -> None:
        """Take a step, and compare."""
        name, broker = label[0], label[1]
        match name:
            case "see state":
                self._see(broker, before, after)
            case "fetch":
                self._fetch(broker, before, after)
            case "response":
                self._response(broker, before, after)
            case "shrink" | "expand":
                self._propose(name, broker, before, after)
            case "settle":
                lead = before.replicas[broker].lead
                isr = self._leading[broker]
                assert lead is not None
                assert lead.pending is not None
                assert isr.pending is not None
                isr.decided(isr.pending, accepted=lead.pending.is_stored)
            case "kill" | "power cut":
                self._leading.pop(broker, None)
                self._following.pop(broker, None)
            case _:
                pass
        for leader, isr in self._leading.items():
            self._compare(leader, isr, before.replicas[leader], after.replicas[leader])

    def _see(self, broker: int, before: State, after: State) -> None:
        old, new = before.replicas[broker], after.replicas[broker]
        if new.lead is not None:
            in_sync = InSync(frozenset(MEMBERS[new.lead.isr]), frozenset(MEMBERS[new.lead.elr]))
            if new.epoch == old.epoch:
                self._leading[broker].newest(in_sync)
                return
            self._following.pop(broker, None)
            self._leading[broker] = Isr(
                broker,
                after.metadata.replicas,
                in_sync,
                min_insync_replicas=self._bounds.min_isr,
                epoch_start_offset=new.end,
                limits=LagLimits(),
                now_ms=0,
            )
            return
        self._leading.pop(broker, None)
        self._following.pop(broker, None)
        if new.leader >= 0:
            self._following[broker] = Following(new.epoch, syncs_first=new.syncs)

    def _fetch(self, broker: int, before: State, after: State) -> None:
        follower = before.replicas[broker]
        leader = before.replicas[follower.leader]
        log = Log(follower)
        assert self._following[broker].is_ready(log)
        position = self._sent[broker] = self._following[broker].begin(log)
        expected = (follower.epoch, follower.end, follower.last_epoch, follower.start)
        assert tuple(position) == expected
        diverging = find_divergence(Log(leader), position.fetch_offset, position.last_fetched_epoch)
        response = after.responses[broker][-1]
        assert diverging == _diverging(response)
        if diverging is None:
            self._leading[follower.leader].fetched(
                broker,
                position.fetch_offset,
                log_start_offset=position.log_start_offset,
                broker_epoch=follower.broker_epoch,
                log_end_offset=leader.end,
                now_ms=0,
            )

    def _response(self, broker: int, before: State, after: State) -> None:
        replica, expected = before.replicas[broker], after.replicas[broker]
        response = before.responses[broker][0]
        fetched = Fetched(response.high_watermark, response.start, _diverging(response))
        log = Log(replica)
        decision = self._following[broker].decide(self._sent[broker], fetched, log)
        if isinstance(decision, Truncate):
            assert decision.end_offset == expected.end
        elif isinstance(decision, Append):
            appended = Log(replica._replace(log=replica.log + response.records))
            assert appended.log_end_offset == expected.end
            assert offsets_after(fetched, appended) == (expected.high_watermark, expected.start)
        else:
            assert decision is None
            assert expected == replica

    def _propose(self, name: str, broker: int, before: State, after: State) -> None:
        lead, proposed = before.replicas[broker].lead, after.replicas[broker].lead
        assert lead is not None
        assert proposed is not None
        assert proposed.pending is not None
        other = 1 - broker
        live = {broker: Live(before.replicas[broker].broker_epoch)}
        if name == "expand":
            live[other] = Live(lead.broker_epochs[other])
        replica = before.replicas[broker]
        proposal = self._leading[broker].propose(
            live,
            log_start_offset=replica.start,
            high_watermark=replica.high_watermark,
            log_end_offset=0,  # the model has no time: no replica lags
            now_ms=0,
        )
        pending = proposed.pending
        assert proposal == InSync(frozenset(MEMBERS[pending.isr]), frozenset(MEMBERS[pending.elr]))

    def _compare(self, broker: int, isr: Isr, old: Replica, new: Replica) -> None:
        """Compare the ISR and the high watermark of a leader."""
        lead = new.lead
        assert lead is not None
        assert isr.committed.isr == frozenset(MEMBERS[lead.isr])
        assert (isr.pending is None) == (lead.pending is None)
        own = own_progress(new.end, new.synced, syncs_first=new.syncs)
        present = old.high_watermark
        found = isr.progress.high_watermark(own, present=present, log_end_offset=new.end)
        assert found == new.high_watermark, (broker, found, new)
        self.compared += 1


def _diverging(response: Response) -> tuple[int, int] | None:
    if response.diverging_epoch == UNKNOWN:
        return None
    return response.diverging_epoch, response.diverging_end
